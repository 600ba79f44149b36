"""Files to which blocks are written: .npy, HDF5 and Zarr. `writing` decides which worker may write what."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import PartitionError
from ..grid import Box, Shape

if TYPE_CHECKING:
    import h5py
    import zarr

CHUNK_BYTES = 16 << 20
"""Most bytes of a chunk if the user does not choose the chunks."""


class Target(ABC):
    """An array in a file, which one worker creates and the others open."""

    one_writer: ClassVar[bool] = False
    """Whether only the worker that created it may write."""

    def __init__(self, path: Path, shape: Shape, dtype: np.dtype, chunks: Shape) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self.chunks = chunks
        """The unit that two workers must not write at the same time; all ones if any worker may write any element."""

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def write(self, box: Box, data: np.ndarray) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class NpyTarget(Target):
    """A .npy file; each worker writes its own runs of bytes."""

    _file = -1
    _start = 0

    def __init__(self, path: Path, shape: Shape, dtype: np.dtype, chunks: Shape) -> None:
        super().__init__(path, shape, dtype, (1,) * len(shape))

    def create(self) -> None:
        with self.path.open("wb") as file:
            described = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(file, described)
            file.truncate(file.tell() + math.prod(self.shape) * self.dtype.itemsize)

    def open(self) -> None:
        with self.path.open("rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            self._start = file.tell()
        self._file = os.open(self.path, os.O_WRONLY)

    def write(self, box: Box, data: np.ndarray) -> None:
        run = len(self.shape) - 1  # the dims from here on are contiguous in the file
        while run > 0 and box.shape[run] == self.shape[run]:
            run -= 1
        strides = [math.prod(self.shape[d + 1 :]) * self.dtype.itemsize for d in range(len(self.shape))]
        data = np.ascontiguousarray(data)
        for index in np.ndindex(*box.shape[:run]):
            inside = (*index, *(0,) * (len(strides) - run))
            offset = sum((a + i) * stride for a, i, stride in zip(box.start, inside, strides, strict=True))
            self._put(data[index].reshape(-1).view(np.uint8).data, self._start + offset)

    def _put(self, data: memoryview, offset: int) -> None:
        while data:
            written = os.pwrite(self._file, data, offset)
            data, offset = data[written:], offset + written

    def close(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1


class HDF5Target(Target):
    """A dataset of an HDF5 file, which only one process can write."""

    one_writer = True
    _file: h5py.File | None = None

    def create(self) -> None:
        import h5py

        self._file = h5py.File(self.path, "w")
        self._file.create_dataset("data", self.shape, self.dtype, chunks=self.chunks or None)

    def open(self) -> None:
        return

    def write(self, box: Box, data: np.ndarray) -> None:
        assert self._file is not None
        self._file["data"][box.slices] = data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class ZarrTarget(Target):
    """An array of Zarr; a chunk is a file, which one worker writes as a whole."""

    _array: zarr.Array | None = None

    def create(self) -> None:
        import zarr

        zarr.create_array(self.path, shape=self.shape, chunks=self.chunks, dtype=self.dtype, fill_value=0)

    def open(self) -> None:
        import zarr

        self._array = zarr.open_array(self.path, mode="r+")

    def write(self, box: Box, data: np.ndarray) -> None:
        assert self._array is not None
        self._array[box.slices] = data

    def close(self) -> None:
        self._array = None


TARGETS: dict[str, type[Target]] = {".npy": NpyTarget, ".h5": HDF5Target, ".hdf5": HDF5Target, ".zarr": ZarrTarget}


def target_of(path: Path) -> type[Target]:
    """The kind of file for the suffix of a path."""
    if path.suffix not in TARGETS:
        raise PartitionError(
            f"BlockWriter: {path} has no ending that tells its format.", fix=f"one of {', '.join(TARGETS)}."
        )
    return TARGETS[path.suffix]


def chunks_for(block: Shape, itemsize: int) -> Shape:
    """Chunks of one sample, as large as a block of it, but of at most `CHUNK_BYTES`."""
    chunks = [1, *(max(1, n) for n in block[1:])]
    while math.prod(chunks) * itemsize > CHUNK_BYTES:
        largest = max(range(len(chunks)), key=lambda d: chunks[d])
        chunks[largest] = -(-chunks[largest] // 2)
    return tuple(chunks)
