"""Stored arrays, of which boxes are read, written and added to: in memory, in a file that nobody else sees, or read
from the user's. Where results go is in `targets`.

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
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.sources import Source
from ..errors import DataError
from ..grid import Box, Shape
from ..grid.row_major import flat_span, strides_of


class StoredArray(ABC):
    """A tensor of which boxes are read and written."""

    shape: Shape

    @abstractmethod
    def read(self, box: Box, device: torch.device) -> Tensor:
        """The box on a device; perhaps a view of what is stored, so it must not be changed."""

    def fetch(self, box: Box, device: torch.device) -> Tensor:
        """The same, perhaps still on its way: not to be used before `Store.arrived`."""
        return self.read(box, device)

    @abstractmethod
    def write(self, box: Box, x: Tensor) -> None:
        """Replace a box."""

    def before_adding(self, box: Box) -> Any:
        """What `add` will want of the box, on its way; None if nothing has to travel."""
        return None

    def add(self, box: Box, x: Tensor, before: Any = None) -> None:
        """Add to a box; `before` is what `before_adding` gave."""
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
        return part.to(device)

    def write(self, box: Box, x: Tensor) -> None:
        self._at(box).copy_(x)

    def add(self, box: Box, x: Tensor, before: Any = None) -> None:
        part = self._at(box)
        part.add_(x.to(part.device))

    def _at(self, box: Box) -> Tensor:
        assert self.tensor is not None
        return self.tensor if box.shape == self.shape else self.tensor[box.slices]

    def release(self) -> None:
        self.tensor = None


class InFile(StoredArray):
    """A tensor in a file without a name, in a folder.

    Long runs of bytes are read and written by calls, which leave nothing in the memory of this process. Short ones are
    copied through a map, whose pages are given back at once.
    """

    _file = -1

    def __init__(self, shape: Shape, dtype: torch.dtype, folder: Path) -> None:
        self.shape, self.dtype = shape, dtype
        size = max(1, prod(shape)) * dtype.itemsize
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # which never gets a name
            self._file = os.dup(file.fileno())
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            self._close()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            raise DataError(
                f"the store in {folder} has no room for {size:,} bytes more; {free:,} are free.",
                fix="store= names a folder on a larger disk.",
            ) from None
        self._map = mmap.mmap(self._file, size)
        bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._tensor: Tensor | None = bytes.view(dtype)[: prod(shape)].view(shape)

    def read(self, box: Box, device: torch.device) -> Tensor:
        x = torch.empty(box.shape, dtype=self.dtype, device="cpu")
        if not self._by_calls(box, x, os.preadv):
            for part in self._pieces(box):
                x[part.relative_to(box).slices].copy_(self._at(part))
                self._give_back(part)
        return x.to(device)

    def write(self, box: Box, x: Tensor) -> None:
        x = x.to("cpu", self.dtype)
        if not self._by_calls(box, x.contiguous() if runs_of(self.shape, box)[1] >= LONG else x, os.pwritev):
            for part in self._pieces(box):
                self._at(part).copy_(x[part.relative_to(box).slices])
                self._give_back(part)

    def add(self, box: Box, x: Tensor, before: Any = None) -> None:
        self.write(box, self.read(box, torch.device("cpu")).add_(x.to("cpu")))

    def _by_calls(self, box: Box, x: Tensor, move: Callable[[int, list[Any], int], int]) -> bool:
        """Move a box in long runs, if it has such."""
        lead, length = runs_of(self.shape, box)
        size = self.dtype.itemsize
        if length * size < LONG:
            return False
        data = x.detach().reshape(-1).view(torch.uint8).numpy().data
        strides = strides_of(self.shape)
        first = sum(a * s for a, s in zip(box.start, strides, strict=True))
        for i, index in enumerate(np.ndindex(*box.shape[:lead])):
            offset = (first + sum(j * s for j, s in zip(index, strides, strict=False))) * size
            self._move_run(data[i * length * size : (i + 1) * length * size], offset, move)
        return True

    def _move_run(self, data: memoryview, offset: int, move: Callable[[int, list[Any], int], int]) -> None:
        while data:
            moved = move(self._file, [data], offset)
            if not moved:
                raise DataError("the store has lost what was written to it.")
            data, offset = data[moved:], offset + moved

    def _pieces(self, box: Box) -> Iterator[Box]:
        """Parts of a box, each of few pages of the file."""
        first, last = flat_span(self.shape, box) if box.volume and box.start else (0, 0)
        d = next((d for d, n in enumerate(box.shape) if n > 1), None)
        if d is None or (last - first) * self.dtype.itemsize <= SPAN:
            yield box
            return
        middle = (box.start[d] + box.stop[d]) // 2
        yield from self._pieces(Box(box.start, (*box.stop[:d], middle, *box.stop[d + 1 :])))
        yield from self._pieces(Box((*box.start[:d], middle, *box.start[d + 1 :]), box.stop))

    def _at(self, box: Box) -> Tensor:
        assert self._tensor is not None
        return self._tensor[box.slices]

    def _give_back(self, box: Box) -> None:
        """Drop the pages of a box from this process; the system keeps what was written."""
        if not box.volume:
            return
        first, last = flat_span(self.shape, box) if box.start else (0, 1)
        size = self.dtype.itemsize
        start, stop = first * size // FOLIO * FOLIO, min(len(self._map), -(-last * size // FOLIO) * FOLIO)
        self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def release(self) -> None:
        self._tensor = None
        with contextlib.suppress(BufferError):  # a view is still in use; the map goes with it
            self._map.close()
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._close()


SPAN = 1 << 20
"""How many bytes of a file are mapped at a time."""
FOLIO = 1 << 21
"""The system maps files by up to so many bytes, whatever is touched of them."""
LONG = 4096
"""Bytes in a row from which a call of the system is faster than the faults of a mapped page."""


def runs_of(shape: Shape, box: Box) -> tuple[int, int]:
    """Into how many leading dims a box has to be taken apart to get contiguous runs, and the length of these."""
    lead, length = len(shape), 1
    while lead and (lead == len(shape) or box.shape[lead] == shape[lead]):
        lead -= 1
        length *= box.shape[lead]
    return lead, length


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
