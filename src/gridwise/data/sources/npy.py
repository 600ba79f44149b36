"""NumPy files (.npy), and memory maps that a user has made: pages come from the disk when they are touched."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Literal, cast

import numpy as np

from ...errors import DataError
from .source import OpenedSource, Slices, native, reading


class MappedSource(OpenedSource):
    """An array in a file that is mapped into memory."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int, is_fortran: bool) -> None:
        self.path, self.label, self.shape = path, str(path), shape
        self.stored, self.offset = dtype, offset
        self.order: Literal["C", "F"] = "F" if is_fortran else "C"
        self.dtype = native(dtype, self.label)
        self.end = offset + math.prod(shape) * dtype.itemsize
        self._check_length()

    def _check_length(self) -> None:
        """Raise if the file is too short: touching a page beyond its end would kill the process."""
        length = os.stat(self.label).st_size
        if length < self.end:
            raise DataError(f"{self.label} ends too early: it has {length} bytes, its array takes {self.end}.")

    def _open(self) -> np.ndarray:
        mapped = np.memmap(self.path, self.stored, "r", self.offset, self.shape, self.order)
        return mapped.view(np.ndarray)  # slicing a memmap takes three times as long

    def _read(self, slices: Slices, out: np.ndarray) -> None:
        self._check_length()
        super()._read(slices, out)


def open_npy(path: Path) -> MappedSource:
    """The array in a .npy file; arrays of Python objects are refused."""
    with reading(str(path)), path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        headers[3, 0] = headers[2, 0]  # which differ in the spelling of field names only, and those are refused
        if version not in headers:
            raise DataError(f"the version {version} of its format is not known.")
        shape, fortran, dtype = headers[version](file)
        return MappedSource(path, dtype, shape, file.tell(), fortran)


def of_memmap(array: np.memmap) -> MappedSource | None:
    """The file behind a memory map; None for a view of one, whose place in the file NumPy does not know."""
    flags, name, under = array.flags, array.filename, cast(object, array.base)
    if not isinstance(under, mmap.mmap) or not (flags.c_contiguous or flags.f_contiguous) or name is None:
        return None
    return MappedSource(Path(name), array.dtype, array.shape, array.offset, not flags.c_contiguous)
