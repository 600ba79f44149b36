"""Stored arrays, of which boxes are read, written and added to: in memory, in a file that nobody else sees, or the user's.

A file is mapped; its pages are given back to the system as soon as they have been used, so they do not count as memory of
the process. It has no name, so nothing is left of it however the program ends, and its room on the disk is taken when it
is made, so that a full disk is an error then.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.sources import Source
from ..errors import DataError
from ..grid import Box, Shape
from ..grid.row_major import flat_span


class StoredArray(ABC):
    """A tensor of which boxes are read and written."""

    shape: Shape

    @abstractmethod
    def read(self, box: Box, device: torch.device) -> Tensor:
        """The box on a device; perhaps a view of what is stored, so it must not be changed."""

    @abstractmethod
    def write(self, box: Box, x: Tensor) -> None:
        """Replace a box."""

    def add(self, box: Box, x: Tensor) -> None:
        """Add to a box."""
        raise TypeError(f"{type(self).__name__} cannot be added to")

    def release(self) -> None:  # noqa: B027  most hold nothing of their own
        """Free what it holds."""


class InMemory(StoredArray):
    """A tensor, on the host or a device."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor
        self.shape = tuple(tensor.shape)

    def read(self, box: Box, device: torch.device) -> Tensor:
        part = self._at(box)
        return part if part.device == device else part.to(device, non_blocking=True)

    def write(self, box: Box, x: Tensor) -> None:
        self._at(box).copy_(x, non_blocking=x.is_cuda)

    def add(self, box: Box, x: Tensor) -> None:
        part = self._at(box)
        part.add_(x.to(part.device))

    def _at(self, box: Box) -> Tensor:
        assert self.tensor is not None
        return self.tensor if box.shape == self.shape else self.tensor[box.slices]

    def release(self) -> None:
        self.tensor = None


class InFile(StoredArray):
    """A tensor in a file without a name, in a folder."""

    def __init__(self, shape: Shape, dtype: torch.dtype, folder: Path) -> None:
        self.shape, self.dtype = shape, dtype
        size = max(1, prod(shape)) * dtype.itemsize
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
                raise DataError(
                    f"the store in {folder} has no room for {size:,} bytes more; {free:,} are free.",
                    fix="store= names a folder on a larger disk.",
                ) from None
            self._map = mmap.mmap(file.fileno(), size)
        bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._tensor: Tensor | None = bytes.view(dtype)[: prod(shape)].view(shape)

    def read(self, box: Box, device: torch.device) -> Tensor:
        x = self._at(box).to(device, copy=True)
        self._give_back(box)
        return x

    def write(self, box: Box, x: Tensor) -> None:
        self._at(box).copy_(x)
        self._give_back(box)

    def add(self, box: Box, x: Tensor) -> None:
        self._at(box).add_(x.to("cpu"))
        self._give_back(box)

    def _at(self, box: Box) -> Tensor:
        assert self._tensor is not None
        return self._tensor[box.slices]

    def _give_back(self, box: Box) -> None:
        """Drop the pages of a box from this process; the system keeps what was written."""
        if not box.volume:
            return
        first, last = flat_span(self.shape, box) if box.start else (0, 1)
        page, size = mmap.PAGESIZE, self.dtype.itemsize
        start, stop = first * size // page * page, min(len(self._map), last * size)
        self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def release(self) -> None:
        self._tensor = None
        with contextlib.suppress(BufferError):  # a view is still in use; the map goes with it
            self._map.close()


def made(shape: Shape, dtype: torch.dtype, folder: Path | None, pinned: bool, zeros: bool = False) -> StoredArray:
    """A new array: in a file if there is a folder, else in memory."""
    if folder is not None and 0 not in shape:
        return InFile(shape, dtype, folder)
    make = torch.zeros if zeros else torch.empty
    return InMemory(make(shape, dtype=dtype, device="cpu", pin_memory=pinned and 0 not in shape))


class FromSource(StoredArray):
    """An array or a file of the user's, of which boxes are read as tensors of a dtype."""

    def __init__(self, source: Source, shape: Shape, dtype: torch.dtype) -> None:
        self.source, self.shape, self.dtype = source, shape, dtype

    def read(self, box: Box, device: torch.device) -> Tensor:
        lacking = len(self.shape) - len(self.source.shape)
        slices = box.slices[lacking:]
        part = np.empty([s.stop - s.start for s in slices], self.source.dtype)
        self.source.read(slices, part)
        return torch.from_numpy(part).to(device, self.dtype).reshape(box.shape)

    def write(self, box: Box, x: Tensor) -> None:
        raise TypeError("a source is only read")


class ToTarget(StoredArray):
    """An array of the user's, of any library, to which boxes are written; it is not read."""

    def __init__(self, target: Any, shape: Shape) -> None:
        self.target, self.shape = target, shape

    def read(self, box: Box, device: torch.device) -> Tensor:
        raise TypeError("a target is only written")

    def write(self, box: Box, x: Tensor) -> None:
        data = x.detach().to("cpu")
        if isinstance(self.target, Tensor):
            self.target[box.slices].copy_(data)
            return
        self.target[box.slices if box.start else ...] = (data.float() if data.dtype == torch.bfloat16 else data).numpy()


class ReadableTarget(StoredArray):
    """An array that is read, and a target that gets the same."""

    def __init__(self, own: StoredArray, target: StoredArray) -> None:
        self.own, self.target, self.shape = own, target, own.shape

    def read(self, box: Box, device: torch.device) -> Tensor:
        return self.own.read(box, device)

    def write(self, box: Box, x: Tensor) -> None:
        self.own.write(box, x)
        self.target.write(box, x)

    def release(self) -> None:
        self.own.release()
