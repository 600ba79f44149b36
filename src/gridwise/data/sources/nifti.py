"""NIfTI volumes, through nibabel: only the slices asked for are read, but compressed files up to the last of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from .source import OpenedSource, native, reading


class NiftiSource(OpenedSource):
    """The numbers of a .nii or .nii.gz file, scaled by its header as in nibabel."""

    def __init__(self, path: Path) -> None:
        self.path, self.label = path, str(path)
        with reading(self.label):
            self._look()
            if (self.opened.slope, self.opened.inter) != (1, 0) and 0 not in self.shape:
                one = np.asarray(self.opened[(slice(0, 1),) * len(self.shape)])
                self.dtype = native(one.dtype, self.label)

    def _open(self) -> Any:
        import nibabel

        image = nibabel.load(self.path)
        if not isinstance(image, nibabel.Nifti1Pair):
            raise DataError(f"it is a {type(image).__name__}, and no NIfTI.")
        return image.dataobj
