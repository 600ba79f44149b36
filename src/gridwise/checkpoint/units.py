"""From wanted boxes to chunks on the disk: what has to be read, and where its bytes go.

want     this worker's box of a stored tensor, and the memory that is to hold it
unit     one chunk (1 MiB) that holds a part of it; its bytes go straight into place where they are one run there,
         else they are scattered
span     units that lie side by side in a file, to be read in one call
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointDamaged
from ..grid import Box, Boxes, Shape
from .chunks import CHUNK, DIGITS, boxes_of_range, chunk_range, is_plain_memory, memory_at
from .disk import MOST_BUFFERS
from .manifest import CODES, ITEMSIZE, Manifest, StoredBlock, StoredTensor


class Want(NamedTuple):
    """A box (None: the whole) of a stored tensor, and the tensor that is to hold it; `fresh` if nobody uses that yet."""

    key: str
    stored: StoredTensor
    target: Tensor
    box: Box | None
    fresh: bool


class PlainWants(NamedTuple):
    """Whole plain tensors of at most a chunk, each stored in one block, in columns; users have seen their memory."""

    keys: list[str]
    stored: list[StoredTensor]
    targets: list[Tensor]
    addresses: list[int]
    sizes: list[int]


class Unit(NamedTuple):
    """A chunk to read: where it lies, its checksum, and where its bytes go (to an `address`, a `scatter`, or nowhere)."""

    file: int
    offset: int
    size: int
    sum: str
    key: str
    address: int
    """Where all its bytes belong, one after the other; 0: nowhere in one run."""
    scatter: Scatter | None
    fresh: bool


class Scatter(NamedTuple):
    """Elements ``[start, stop)`` of a block of `shape`, of which `inside` belongs into `target` (both boxes as shifted)."""

    dtype: torch.dtype
    shape: Shape
    start: int
    stop: int
    inside: Box
    target: Tensor

    def put(self, data: memoryview) -> None:
        flat = torch.frombuffer(data, dtype=self.dtype)
        done = 0
        for box in boxes_of_range(self.shape, self.start, self.stop):
            common = box.intersect(self.inside)
            if common is not None:
                source = flat[done : done + box.volume].view(box.shape)[common.relative_to(box).slices]
                self.target[common.relative_to(self.inside).slices].copy_(source)
            done += box.volume


def units_of_all(wants: Iterable[Want], plain: Iterable[PlainWants]) -> list[Unit]:
    """The chunks that hold what is wanted."""
    units = [unit for want in wants for unit in units_of(want)]
    for columns in plain:
        files, offsets, sums, _ = zip(*[stored.blocks[0] for stored in columns.stored], strict=True)
        fields = zip(files, offsets, columns.sizes, sums, columns.keys, columns.addresses, repeat(None), repeat(False))
        units += map(tuple.__new__, repeat(Unit), fields)
    return units


def units_of(want: Want) -> Iterable[Unit]:
    """The chunks that hold what one tensor wants."""
    stored, target = want.stored, want.target
    plain = is_plain_memory(target) and CODES[target.dtype] == stored.code
    if want.box is None and plain and len(stored.blocks) == 1:
        return _whole_units(want, stored.blocks[0])
    return _units_of_pieces(want, plain)


def _units_of_pieces(want: Want, plain: bool) -> Iterator[Unit]:
    stored = want.stored
    box = want.box if want.box is not None else Box.of_shape(stored.shape)
    boxes = stored.boxes()
    found = 0
    for place, common in Boxes.of(enumerate(boxes)).pieces(box):
        found += common.volume
        yield from _piece_units(want, stored.blocks[place], boxes[place], common, common.relative_to(box), plain)
    if found != box.volume:
        raise CheckpointDamaged(f"{want.key!r}: {found} of the {box.volume} wanted elements are in the checkpoint.")


def _whole_units(want: Want, block: StoredBlock) -> list[Unit]:
    file, offset, sums, _ = block
    address, nbytes = want.target.data_ptr(), want.target.nbytes
    units = []
    for chunk, start in enumerate(range(0, nbytes, CHUNK)):
        text = sums[chunk * DIGITS : (chunk + 1) * DIGITS]
        size = min(CHUNK, nbytes - start)
        units.append(Unit(file, offset + start, size, text, want.key, address + start, None, want.fresh))
    return units


def _piece_units(want: Want, block: StoredBlock, box: Box, common: Box, place: Box, plain: bool) -> Iterator[Unit]:
    itemsize = ITEMSIZE[want.stored.code]
    shape, inside = box.shape, common.relative_to(box)
    volume, per_chunk = box.volume, CHUNK // itemsize
    first, target_first = _flat_start(shape, inside), _flat_start(tuple(want.target.shape), place)
    in_one_run = plain and first >= 0 and target_first >= 0
    target = want.target[place.slices]
    for chunk in chunk_range(shape, itemsize, inside):
        start, stop = chunk * per_chunk, min((chunk + 1) * per_chunk, volume)
        address = 0
        if in_one_run and first <= start and stop <= first + common.volume:
            address = want.target.data_ptr() + (target_first + start - first) * itemsize
        scatter = None if address else Scatter(want.stored.dtype, shape, start, stop, inside, target)
        text = block.sums[chunk * DIGITS : (chunk + 1) * DIGITS]
        offset = block.offset + start * itemsize
        yield Unit(block.file, offset, (stop - start) * itemsize, text, want.key, address, scatter, want.fresh)


def _flat_start(shape: Shape, box: Box) -> int:
    """Where a box starts in the flat index of `shape`, if it is one run of it; else -1."""
    dims = list(range(len(shape)))
    while dims and box.start[dims[-1]] == 0 and box.stop[dims[-1]] == shape[dims[-1]]:
        dims.pop()
    if any(box.shape[d] != 1 for d in dims[:-1]):
        return -1
    return sum(a * math.prod(shape[d + 1 :]) for d, a in enumerate(box.start))


def all_units(manifest: Manifest) -> list[Unit]:
    """Every chunk of a checkpoint; the bytes go nowhere."""
    units = []
    for key, tensor in manifest.tensors.items():
        itemsize = ITEMSIZE[tensor.code]
        for block, box in zip(tensor.blocks, tensor.boxes(), strict=True):
            nbytes = box.volume * itemsize
            for chunk, start in enumerate(range(0, nbytes, CHUNK)):
                text = block.sums[chunk * DIGITS : (chunk + 1) * DIGITS]
                size = min(CHUNK, nbytes - start)
                units.append(Unit(block.file, block.offset + start, size, text, key, 0, None, False))
    return units


def put(unit: Unit, data: memoryview) -> None:
    if unit.address:
        memory_at(unit.address, unit.size)[:] = data
    elif unit.scatter is not None:
        unit.scatter.put(data)


Span = tuple[int, int]
"""Units from the first number up to, not including, the second."""


def in_order(units: Iterable[Unit]) -> list[Unit]:
    """The units that have bytes, as these lie in the files."""
    return sorted([unit for unit in units if unit[2]], key=itemgetter(0, 1))


def spans_of(units: Sequence[Unit]) -> Iterator[Span]:
    """Units that lie side by side in a file, up to a chunk's bytes together; `units` are `in_order`."""
    if not units:
        return
    files, starts, sizes = (np.array(list(map(itemgetter(k), units)), dtype=np.int64) for k in range(3))
    ends = starts + sizes
    apart = (files[1:] != files[:-1]) | (starts[1:] != ends[:-1])
    first = 0
    for last in (*(np.flatnonzero(apart) + 1).tolist(), len(units)):
        while first < last:
            fitting = int(np.searchsorted(ends[first:last], starts[first] + CHUNK, "right"))
            stop = first + max(1, min(fitting, MOST_BUFFERS))
            yield first, stop
            first = stop


def tensors_of(units: Sequence[Unit]) -> str:
    keys = list(dict.fromkeys(unit.key for unit in units))
    named = ", ".join(repr(key) for key in keys[:3])
    return f"tensor {named}{', ...' * (len(keys) > 3)}"
