"""Files of NumPy (.npy), and memory maps that a user has made: pages come from the disk as they are touched."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from .source import Place, Source, native, reading


class MappedSource(Source):
    """An array in a file, as it lies in memory."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int, order: Any) -> None:
        self.path, self.says, self.shape = path, str(path), shape
        self.stored, self.offset, self.order = dtype, offset, order
        self.dtype = native(dtype, self.says)
        self.end = offset + math.prod(shape) * dtype.itemsize
        self._map: np.ndarray | None = None
        self._check_length()

    def _check_length(self) -> None:
        """Whoever touches a page behind the end of a file is killed, so look first."""
        length = os.stat(self.says).st_size
        if length < self.end:
            raise DataError(f"{self.says} ends too early: it has {length} bytes, its array takes {self.end}.")

    def _read(self, place: Place, out: np.ndarray) -> None:
        self._check_length()
        if self._map is None:
            mapped = np.memmap(self.path, self.stored, "r", self.offset, self.shape, self.order)
            self._map = mapped.view(np.ndarray)  # slicing a memmap takes three times as long
        np.copyto(out, self._map[place])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}


def open_npy(path: Path) -> MappedSource:
    """The array in a .npy file; one of Python objects is refused."""
    with reading(str(path)), path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in headers:
            raise DataError(f"the version {version} of its format is not known.")
        shape, fortran, dtype = headers[version](file)
        return MappedSource(path, dtype, shape, file.tell(), "F" if fortran else "C")


def of_memmap(array: np.memmap) -> MappedSource | None:
    """The file behind a memory map, None for a view of one, whose place in the file NumPy does not know."""
    flags, name = array.flags, array.filename
    under: Any = array.base
    if not isinstance(under, mmap.mmap) or not (flags.c_contiguous or flags.f_contiguous) or name is None:
        return None
    return MappedSource(Path(name), array.dtype, array.shape, array.offset, "C" if flags.c_contiguous else "F")
