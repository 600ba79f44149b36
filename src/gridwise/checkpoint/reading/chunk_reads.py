"""The chunks on the disk that hold wanted boxes, and where their bytes go, in columns.

want     this worker's box of a stored tensor, and the memory that it goes into
read     one chunk (1 MiB at most) that holds something wanted; its bytes go straight into place if they are contiguous
         there, else they are scattered
span     adjacent reads of a file, made in one call
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import CheckpointDamaged
from ...grid import Box, Boxes, Shape, boxes_of_range, flat_span
from ..disk import MOST_BUFFERS
from ..format.chunks import CHUNK, Memory, chunk_range, is_plain_memory, memories, memory_address, memory_at, sum_at
from ..format.manifest import CODES, ITEMSIZE, Manifest, StoredBlock, StoredTensor


class Scatter(NamedTuple):
    """Elements ``[start, stop)`` of a block of `shape`; those in its box `inside` go to `target`, of the same shape."""

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
    """A chunk to read: where it is, its checksum, and where its bytes go (to an `address`, a `scatter`, or nowhere)."""

    file: int
    offset: int
    size: int
    sum: int
    address: int
    """Where all its bytes go, one after the other; 0 if they are not contiguous there."""
    fresh: bool
    """Whether it goes to new memory, which nobody uses yet."""
    key: str
    scatter: Scatter | None


LONGEST_SPAN = 8 * CHUNK
"""Most bytes of a span: a few chunks, so that the work per span costs little."""

Span = tuple[int, int]
"""A range of reads: the number of the first, and of the one after the last."""


COLUMN_DTYPES: tuple[type[np.generic], ...] = (np.int64, np.int64, np.int64, np.uint64, np.int64, np.bool_)
"""Dtypes of the numeric fields, which come first."""


@dataclass(frozen=True, slots=True)
class ChunkReads:
    """Many reads, a column for each of their fields."""

    files: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    sums: np.ndarray
    addresses: np.ndarray
    fresh: np.ndarray
    keys: Sequence[str]
    scatters: Sequence[Scatter | None]

    @classmethod
    def of(cls, reads: Iterable[ChunkRead]) -> ChunkReads:
        columns = list(zip(*reads, strict=True)) or [()] * len(ChunkRead._fields)
        arrays = [np.array(column, dtype=dtype) for column, dtype in zip(columns, COLUMN_DTYPES, strict=False)]
        return cls(*arrays, *columns[len(COLUMN_DTYPES) :])  # type: ignore[arg-type]

    def in_order(self) -> ChunkReads:
        """The reads that have bytes, in the order of the files."""
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
        """Bytes from the first read to the last, which are adjacent."""
        return int(self.offsets[-1] + self.sizes[-1] - self.offsets[0])

    @property
    def go_straight(self) -> bool:
        """Whether all bytes go straight into place."""
        return bool(self.addresses.all())

    def have_to_be_put(self) -> np.ndarray:
        """Which reads must be put into place after the check: not those for new memory, nor those that go nowhere."""
        if self.go_straight:
            return ~self.fresh
        scattered = np.array([scatter is not None for scatter in self.scatters], dtype=np.bool_)
        return ~self.fresh & ((self.addresses != 0) | scattered)

    def memories(self) -> list[Memory]:
        """The memory that their bytes go to."""
        return memories(self.addresses.tolist(), self.sizes.tolist())

    def views(self, data: memoryview) -> list[memoryview]:
        """The bytes of each read in `data`, which starts with the first one."""
        starts = self.offsets - self.offsets[0]
        return [data[start:stop] for start, stop in zip(starts.tolist(), (starts + self.sizes).tolist(), strict=True)]

    def put(self, place: int, data: memoryview) -> None:
        scatter = self.scatters[place]
        if self.addresses[place]:
            memory_at(int(self.addresses[place]), int(self.sizes[place]))[:] = data
        elif scatter is not None:
            scatter.put(data)

    def spans(self, most: int = LONGEST_SPAN) -> Iterator[Span]:
        """Ranges of adjacent reads, each of at most `most` bytes; the reads must be `in_order`."""
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
        """The tensors that they belong to, for errors."""
        keys = list(dict.fromkeys(self.keys))
        return f"tensor {', '.join(map(repr, keys[:3]))}{', ...' * (len(keys) > 3)}"


def _taken(column: Any, order: np.ndarray) -> Any:
    return column[order] if isinstance(column, np.ndarray) else [column[place] for place in order.tolist()]


class Want(NamedTuple):
    """A box (None: the whole) of a stored tensor, and the tensor to put it into; `fresh` if nobody uses that yet."""

    key: str
    stored: StoredTensor
    target: Tensor
    box: Box | None
    fresh: bool
    address: int = 0
    """Where the whole tensor lies in host memory exactly as it is stored; 0 if not known yet."""
    checked: bool = True
    """Whether its chunks have checksums, and so must be read whole."""


def reads_of_all(wants: Iterable[Want]) -> ChunkReads:
    """The chunks that hold all wanted boxes."""
    return ChunkReads.of(chain.from_iterable(map(reads_of, wants)))


def reads_of(want: Want) -> Iterable[ChunkRead]:
    """The chunks that hold one wanted box."""
    key, stored, target, box, fresh, address, _ = want
    plain = bool(address) or (is_plain_memory(target) and CODES[target.dtype] == stored.code)
    if box is not None or not plain or len(stored.blocks) != 1:
        return _reads_of_pieces(want, plain)
    file, offset, sums, _ = stored.blocks[0]
    address, nbytes = address or target.data_ptr(), target.nbytes
    if nbytes <= CHUNK:
        return (ChunkRead(file, offset, nbytes, int(sums, 16), address, fresh, key, None),)
    return [
        ChunkRead(file, offset + at, min(CHUNK, nbytes - at), sum_at(sums, chunk), address + at, fresh, key, None)
        for chunk, at in enumerate(range(0, nbytes, CHUNK))
    ]


def _reads_of_pieces(want: Want, plain: bool) -> Iterator[ChunkRead]:
    stored = want.stored
    box = want.box if want.box is not None else Box.of_shape(stored.shape)
    boxes = stored.boxes()
    found = 0
    for place, common in Boxes.of(enumerate(boxes)).pieces(box):
        found += common.volume
        yield from _reads_of_piece(want, stored.blocks[place], boxes[place], common, common.relative_to(box), plain)
    if found != box.volume:
        raise CheckpointDamaged(f"{want.key!r}: {found} of the {box.volume} wanted elements are in the checkpoint.")


def _reads_of_piece(
    want: Want, block: StoredBlock, box: Box, common: Box, place: Box, plain: bool
) -> Iterator[ChunkRead]:
    itemsize = ITEMSIZE[want.stored.code]
    shape, inside = box.shape, common.relative_to(box)
    volume, per_chunk = box.volume, CHUNK // itemsize
    first, after = flat_span(shape, inside)
    target_first, target_after = flat_span(want.target.shape, place)
    in_one_run = plain and after - first == target_after - target_first == common.volume
    target = want.target[place.slices]
    # Without checksums, only the range from the first to the last wanted element is read.
    lowest, highest = (0, volume) if want.checked else (first, after)
    for chunk in chunk_range(shape, itemsize, inside):
        start, stop = max(lowest, chunk * per_chunk), min((chunk + 1) * per_chunk, volume, highest)
        address = 0
        if in_one_run and first <= start and stop <= first + common.volume:
            address = want.target.data_ptr() + (target_first + start - first) * itemsize
        scatter = None if address else Scatter(want.stored.dtype, shape, start, stop, inside, target)
        offset, size = block.offset + start * itemsize, (stop - start) * itemsize
        yield ChunkRead(block.file, offset, size, sum_at(block.sums, chunk), address, want.fresh, want.key, scatter)


def all_reads(manifest: Manifest) -> ChunkReads:
    """Every chunk of a checkpoint, to be checked only: the bytes go nowhere."""
    return ChunkReads.of(
        ChunkRead(
            block.file, block.offset + start, min(CHUNK, nbytes - start), sum_at(block.sums, chunk), 0, False, key, None
        )
        for key, tensor in manifest.tensors.items()
        for block, box in zip(tensor.blocks, tensor.boxes(), strict=True)
        for nbytes in [box.volume * ITEMSIZE[tensor.code]]
        for chunk, start in enumerate(range(0, nbytes, CHUNK))
    )
