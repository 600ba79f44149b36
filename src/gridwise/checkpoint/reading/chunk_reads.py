"""Chunks on the disk that are to be read, in columns, and where their bytes go.

unit     one chunk (1 MiB at most) that holds something wanted; its bytes go straight into place where they are one run
         there, else they are scattered
span     units that lie side by side in a file, to be read in one call
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...grid import Box, Shape, boxes_of_range
from ..disk import MOST_BUFFERS
from ..format.chunks import CHUNK, Memory, memories, memory_address, memory_at


class Scatter(NamedTuple):
    """Elements ``[start, stop)`` of a block of `shape`, of which `inside` belongs into `target` (both boxes as shifted)."""

    dtype: torch.dtype
    shape: Shape
    start: int
    stop: int
    inside: Box
    target: Tensor

    def put(self, data: memoryview) -> None:
        aligned = memory_address(data) % self.dtype.itemsize == 0
        flat = torch.frombuffer(data if aligned else bytearray(data), dtype=self.dtype)
        done = 0
        for box in boxes_of_range(self.shape, self.start, self.stop):
            common = box.intersect(self.inside)
            if common is not None:
                source = flat[done : done + box.volume].view(box.shape)[common.relative_to(box).slices]
                self.target[common.relative_to(self.inside).slices].copy_(source)
            done += box.volume


class ChunkRead(NamedTuple):
    """A chunk to read: where it lies, its checksum, and where its bytes go (to an `address`, a `scatter`, or nowhere)."""

    file: int
    offset: int
    size: int
    sum: int
    address: int
    """Where all its bytes belong, one after the other; 0: nowhere in one run."""
    fresh: bool
    """Whether nobody uses yet what it goes to."""
    key: str
    scatter: Scatter | None


TOGETHER = 8 * CHUNK
"""Bytes of a span, at most: a few chunks, so that what is done once for each costs little."""

Span = tuple[int, int]
"""Units from the first number up to, not including, the second."""


DTYPES: tuple[type[np.generic], ...] = (np.int64, np.int64, np.int64, np.uint64, np.int64, np.bool_)
"""Of the fields that are numbers, the first ones."""


@dataclass(frozen=True, slots=True)
class ChunkReads:
    """Many units, a column for each of their fields."""

    files: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    sums: np.ndarray
    addresses: np.ndarray
    fresh: np.ndarray
    keys: Sequence[str]
    scatters: Sequence[Scatter | None]

    @classmethod
    def of(cls, units: Iterable[ChunkRead]) -> ChunkReads:
        columns = list(zip(*units, strict=True)) or [()] * len(ChunkRead._fields)
        arrays = [np.array(column, dtype=dtype) for column, dtype in zip(columns, DTYPES, strict=False)]
        return cls(*arrays, *columns[len(DTYPES) :])  # type: ignore[arg-type]

    def in_order(self) -> ChunkReads:
        """The units that have bytes, as these lie in the files."""
        order = np.lexsort((self.offsets, self.files))
        order = order[self.sizes[order] > 0]
        if np.array_equal(order, np.arange(len(self))):
            return self
        return ChunkReads(*(_taken(column, order) for column in self.columns))

    @property
    def columns(self) -> list[Any]:
        numbers = [self.files, self.offsets, self.sizes, self.sums, self.addresses, self.fresh]
        return [*numbers, self.keys, self.scatters]

    def cut(self, span: Span) -> ChunkReads:
        part = slice(*span)
        return ChunkReads(*[column[part] for column in self.columns])

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def extent(self) -> int:
        """Bytes from the first unit to the last, which lie side by side."""
        return int(self.offsets[-1] + self.sizes[-1] - self.offsets[0])

    @property
    def go_straight(self) -> bool:
        """Whether all bytes go straight into place."""
        return bool(self.addresses.all())

    def have_to_be_put(self) -> np.ndarray:
        """Which units still have bytes to be put when they are checked: not those for new memory, or for none."""
        if self.go_straight:
            return ~self.fresh
        scattered = np.array([scatter is not None for scatter in self.scatters], dtype=np.bool_)
        return ~self.fresh & ((self.addresses != 0) | scattered)

    def memories(self) -> list[Memory]:
        """The places that their bytes belong to."""
        return memories(self.addresses.tolist(), self.sizes.tolist())

    def views(self, data: memoryview) -> list[memoryview]:
        """The bytes of each in `data`, which starts where the first unit does."""
        starts = self.offsets - self.offsets[0]
        return [data[start:stop] for start, stop in zip(starts.tolist(), (starts + self.sizes).tolist(), strict=True)]

    def put(self, place: int, data: memoryview) -> None:
        scatter = self.scatters[place]
        if self.addresses[place]:
            memory_at(int(self.addresses[place]), int(self.sizes[place]))[:] = data
        elif scatter is not None:
            scatter.put(data)

    def spans(self, most: int = TOGETHER) -> Iterator[Span]:
        """Units that lie side by side in a file, together at most so many bytes; these units are `in_order`."""
        if not len(self):
            return
        ends = self.offsets + self.sizes
        apart = (self.files[1:] != self.files[:-1]) | (self.offsets[1:] != ends[:-1])
        first = 0
        for last in (*(np.flatnonzero(apart) + 1).tolist(), len(self)):
            while first < last:
                fitting = int(np.searchsorted(ends[first:last], self.offsets[first] + most, "right"))
                stop = first + max(1, min(fitting, MOST_BUFFERS))
                yield first, stop
                first = stop

    def named(self) -> str:
        """The tensors that they belong to, in words."""
        keys = list(dict.fromkeys(self.keys))
        return f"tensor {', '.join(map(repr, keys[:3]))}{', ...' * (len(keys) > 3)}"


def _taken(column: Any, order: np.ndarray) -> Any:
    return column[order] if isinstance(column, np.ndarray) else [column[place] for place in order.tolist()]
