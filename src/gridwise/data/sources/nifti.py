"""Volumes of NIfTI, through nibabel: only the slices that are asked for are read, of compressed files up to their last row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from .source import Place, Source, copy_checked, native, reading


class NiftiSource(Source):
    """The numbers of a .nii or .nii.gz file, scaled by its header as nibabel does it."""

    def __init__(self, path: Path) -> None:
        self.path, self.says = path, str(path)
        self._proxy: Any = None
        with reading(self.says):
            proxy = self._opened()
            self.shape = tuple(int(n) for n in proxy.shape)
            scaled = (proxy.slope, proxy.inter) != (1, 0) and 0 not in self.shape
            one = np.asarray(proxy[(slice(0, 1),) * len(self.shape)]) if scaled else proxy
            self.dtype = native(one.dtype, self.says)

    def _opened(self) -> Any:
        if self._proxy is None:
            import nibabel

            image = nibabel.load(self.path)
            if not isinstance(image, nibabel.Nifti1Pair):
                raise DataError(f"it is a {type(image).__name__}, and no NIfTI.")
            self._proxy = image.dataobj
        return self._proxy

    def _read(self, place: Place, out: np.ndarray) -> None:
        copy_checked(np.asarray(self._opened()[place]), out)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_proxy": None}
