"""Files to which blocks are written: .npy, HDF5 and Zarr. `writing` decides which worker may write what.

A file is written beside its place, as ``name.partial``, and gets its name when it is complete (`NewFile`).
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import DataError, PartitionError
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
        run = max(0, len(self.shape) - 1)  # the dims from here on are contiguous in the file
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
    """A dataset of an HDF5 file, which only one process can write.

    Its room on the disk is taken when it is made: after a write that fails for want of room, HDF5 may end the process.
    """

    one_writer = True
    _file: h5py.File | None = None
    _data: h5py.Dataset

    def create(self) -> None:
        import h5py

        with self.path.open("wb") as file:
            _take_room(file.fileno(), math.prod(self.shape) * self.dtype.itemsize)
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # what is not written reads as zero
        self._file = h5py.File(self.path, "w")
        self._data = self._file.create_dataset(
            "data", self.shape, self.dtype, chunks=self.chunks or None, dcpl=settings
        )
        self._file.flush()
        with self.path.open("rb+") as file:
            _take_room(file.fileno(), os.fstat(file.fileno()).st_size)

    def open(self) -> None:
        return

    def write(self, box: Box, data: np.ndarray) -> None:
        self._data[box.slices] = data

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


def _take_room(file: int, size: int) -> None:
    """Raise now if the disk is too full for these bytes of a file."""
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)


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


class NewFile:
    """A file that does not exist before it is complete; one that is there already is replaced only if `overwrite`."""

    def __init__(self, path: Path, shape: Shape, dtype: np.dtype, chunks: Shape, overwrite: bool = False) -> None:
        self.path, self.overwrite = path, overwrite
        self.unfinished = path.with_name(f"{path.name}.partial")
        self.target = target_of(path)(self.unfinished, shape, dtype, chunks)

    def create(self) -> None:
        """Make the unfinished file, in place of what a killed process may have left."""
        if self._is_taken():
            raise DataError(f"{self.path} is there already.", fix="overwrite=True replaces it.")
        _remove(self.unfinished)
        try:
            self.target.create()
        except BaseException:
            self.discard()
            raise

    def commit(self) -> None:
        """Give the complete file, which has been closed, its name."""
        if self._is_taken():
            raise DataError(
                f"{self.path} has appeared since the writer was created; what was written is in {self.unfinished}.",
                fix="move one of them away; or overwrite=True, which replaces what is there.",
            )
        has_folder = _is_folder(self.unfinished) or _is_folder(self.path)
        if not has_folder or not os.path.lexists(self.path):
            os.replace(self.unfinished, self.path)
            return
        old = self.path.with_name(f"{self.path.name}.replaced")  # a rename cannot replace a folder
        _remove(old)
        os.rename(self.path, old)
        try:
            os.rename(self.unfinished, self.path)
        except BaseException:
            os.rename(old, self.path)
            raise
        _remove(old)

    def discard(self) -> None:
        """Remove what was written; an error that led to this is not hidden by another."""
        with contextlib.suppress(Exception):
            self.target.close()
        with contextlib.suppress(OSError):
            _remove(self.unfinished)

    def _is_taken(self) -> bool:
        return os.path.lexists(self.path) and not self.overwrite


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
