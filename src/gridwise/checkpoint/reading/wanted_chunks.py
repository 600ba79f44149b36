"""From wanted boxes to the chunks on the disk that hold them.

want     this worker's box of a stored tensor, and the memory that is to hold it
unit     one chunk that holds a part of it (`units`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from torch import Tensor

from ...errors import CheckpointDamaged
from ...grid import Box, Boxes, flat_span
from ..format.chunks import CHUNK, chunk_range, is_plain_memory, sum_at
from ..format.manifest import CODES, ITEMSIZE, Manifest, StoredBlock, StoredTensor
from .chunk_reads import ChunkRead, ChunkReads, Scatter


class Want(NamedTuple):
    """A box (None: the whole) of a stored tensor, and the tensor that is to hold it; `fresh` if nobody uses that yet."""

    key: str
    stored: StoredTensor
    target: Tensor
    box: Box | None
    fresh: bool
    address: int = 0
    """Where the whole tensor lies in host memory just as it is stored; 0: not known yet."""
    checked: bool = True
    """Whether its chunks have checksums, for which they must be read whole."""


def units_of_all(wants: Iterable[Want]) -> ChunkReads:
    """The chunks that hold what is wanted."""
    return ChunkReads.of(chain.from_iterable(map(units_of, wants)))


def units_of(want: Want) -> Iterable[ChunkRead]:
    """The chunks that hold what one tensor wants."""
    key, stored, target, box, fresh, address, _ = want
    plain = bool(address) or (is_plain_memory(target) and CODES[target.dtype] == stored.code)
    if box is not None or not plain or len(stored.blocks) != 1:
        return _units_of_pieces(want, plain)
    file, offset, sums, _ = stored.blocks[0]
    address, nbytes = address or target.data_ptr(), target.nbytes
    if nbytes <= CHUNK:
        return (ChunkRead(file, offset, nbytes, int(sums, 16), address, fresh, key, None),)
    return [
        ChunkRead(file, offset + at, min(CHUNK, nbytes - at), sum_at(sums, chunk), address + at, fresh, key, None)
        for chunk, at in enumerate(range(0, nbytes, CHUNK))
    ]


def _units_of_pieces(want: Want, plain: bool) -> Iterator[ChunkRead]:
    stored = want.stored
    box = want.box if want.box is not None else Box.of_shape(stored.shape)
    boxes = stored.boxes()
    found = 0
    for place, common in Boxes.of(enumerate(boxes)).pieces(box):
        found += common.volume
        yield from _piece_units(want, stored.blocks[place], boxes[place], common, common.relative_to(box), plain)
    if found != box.volume:
        raise CheckpointDamaged(f"{want.key!r}: {found} of the {box.volume} wanted elements are in the checkpoint.")


def _piece_units(want: Want, block: StoredBlock, box: Box, common: Box, place: Box, plain: bool) -> Iterator[ChunkRead]:
    itemsize = ITEMSIZE[want.stored.code]
    shape, inside = box.shape, common.relative_to(box)
    volume, per_chunk = box.volume, CHUNK // itemsize
    first, after = flat_span(shape, inside)
    target_first, target_after = flat_span(want.target.shape, place)
    in_one_run = plain and after - first == target_after - target_first == common.volume
    target = want.target[place.slices]
    # Without checksums, no more is read than from the first to the last element that is wanted.
    lowest, highest = (0, volume) if want.checked else (first, after)
    for chunk in chunk_range(shape, itemsize, inside):
        start, stop = max(lowest, chunk * per_chunk), min((chunk + 1) * per_chunk, volume, highest)
        address = 0
        if in_one_run and first <= start and stop <= first + common.volume:
            address = want.target.data_ptr() + (target_first + start - first) * itemsize
        scatter = None if address else Scatter(want.stored.dtype, shape, start, stop, inside, target)
        offset, size = block.offset + start * itemsize, (stop - start) * itemsize
        yield ChunkRead(block.file, offset, size, sum_at(block.sums, chunk), address, want.fresh, want.key, scatter)


def all_units(manifest: Manifest) -> ChunkReads:
    """Every chunk of a checkpoint; the bytes go nowhere."""
    return ChunkReads.of(
        ChunkRead(
            block.file, block.offset + start, min(CHUNK, nbytes - start), sum_at(block.sums, chunk), 0, False, key, None
        )
        for key, tensor in manifest.tensors.items()
        for block, box in zip(tensor.blocks, tensor.boxes(), strict=True)
        for nbytes in [box.volume * ITEMSIZE[tensor.code]]
        for chunk, start in enumerate(range(0, nbytes, CHUNK))
    )
