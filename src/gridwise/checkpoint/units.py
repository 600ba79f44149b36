"""From wanted boxes to chunks on the disk: what has to be read, and where its bytes go.

want     this worker's box of a stored tensor, and the memory that is to hold it
unit     one chunk (1 MiB) that holds a part of it; its bytes go straight into place where they are one run there,
         else they are scattered
span     units that lie side by side in a file, to be read in one call
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointDamaged
from ..grid import Box, Boxes, Shape
from .chunks import CHUNK, DIGITS, boxes_of_range, chunk_range, is_plain_memory, memory
from .disk import MOST_BUFFERS
from .manifest import CODES, ITEMSIZE, Manifest, StoredBlock, StoredTensor


class Want(NamedTuple):
    """A box (None: the whole) of a stored tensor, and the tensor that is to hold it; `fresh` if nobody uses that yet."""

    key: str
    stored: StoredTensor
    target: Tensor
    box: Box | None
    fresh: bool


class Unit(NamedTuple):
    """A chunk to read: where it lies, its checksum, and where its bytes go (`direct`, or `Scatter`, or nowhere)."""

    file: int
    offset: int
    size: int
    sum: str
    key: str
    direct: memoryview | None
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


def units_of(want: Want) -> Iterable[Unit]:
    """The chunks that hold what is wanted."""
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
    view = memory(want.target)
    if len(view) <= CHUNK:
        return [Unit(file, offset, len(view), sums, want.key, view, None, want.fresh)]
    units = []
    for chunk, start in enumerate(range(0, len(view), CHUNK)):
        part = view[start : start + CHUNK]
        text = sums[chunk * DIGITS : (chunk + 1) * DIGITS]
        units.append(Unit(file, offset + start, len(part), text, want.key, part, None, want.fresh))
    return units


def _piece_units(want: Want, block: StoredBlock, box: Box, common: Box, place: Box, plain: bool) -> Iterator[Unit]:
    itemsize = ITEMSIZE[want.stored.code]
    shape, inside = box.shape, common.relative_to(box)
    volume, per_chunk = box.volume, CHUNK // itemsize
    first, target_first = _flat_start(shape, inside), _flat_start(tuple(want.target.shape), place)
    view = memory(want.target) if plain and first >= 0 and target_first >= 0 else None
    target = want.target[place.slices]
    for chunk in chunk_range(shape, itemsize, inside):
        start, stop = chunk * per_chunk, min((chunk + 1) * per_chunk, volume)
        direct = None
        if view is not None and first <= start and stop <= first + common.volume:
            at = (target_first + start - first) * itemsize
            direct = view[at : at + (stop - start) * itemsize]
        scatter = None if direct is not None else Scatter(want.stored.dtype, shape, start, stop, inside, target)
        text = block.sums[chunk * DIGITS : (chunk + 1) * DIGITS]
        offset = block.offset + start * itemsize
        yield Unit(block.file, offset, (stop - start) * itemsize, text, want.key, direct, scatter, want.fresh)


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
                units.append(Unit(block.file, block.offset + start, size, text, key, None, None, False))
    return units


def goes_nowhere(unit: Unit) -> bool:
    return unit.direct is None and unit.scatter is None


def is_done(span: list[Unit]) -> bool:
    return all(unit.fresh or goes_nowhere(unit) for unit in span)


def put(unit: Unit, data: memoryview) -> None:
    if unit.direct is not None:
        unit.direct[:] = data
    elif unit.scatter is not None:
        unit.scatter.put(data)


def spans_of(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Units that lie side by side in a file, up to a chunk's bytes together."""
    span: list[Unit] = []
    size = 0
    for unit in sorted(units, key=lambda unit: (unit.file, unit.offset)):
        if not unit.size:
            continue
        last = span[-1] if span else None
        adjoins = last is not None and last.file == unit.file and last.offset + last.size == unit.offset
        if not adjoins or size + unit.size > CHUNK or len(span) == MOST_BUFFERS:
            if span:
                yield span
            span, size = [], 0
        span.append(unit)
        size += unit.size
    if span:
        yield span


def size_of(span: list[Unit]) -> int:
    return span[-1].offset + span[-1].size - span[0].offset


def views_of(span: list[Unit], data: memoryview) -> Iterator[memoryview]:
    first = span[0].offset
    return (data[unit.offset - first : unit.offset - first + unit.size] for unit in span)


def tensors_of(span: list[Unit]) -> str:
    keys = list(dict.fromkeys(unit.key for unit in span))
    named = ", ".join(repr(key) for key in keys[:3])
    return f"tensor {named}{', ...' * (len(keys) > 3)}"
