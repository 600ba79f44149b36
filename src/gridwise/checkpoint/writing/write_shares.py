"""Which worker writes what. What all workers hold is written once, shared out among them.

A tensor that all workers hold is one block, written by the worker with the least to write so far; a large one is cut
along its first dim into a block per worker. Every worker computes the same answer from the same names and shapes,
without a message. That these *are* the same is agreed first (`same_structure`); that the tensors have the same values
is checked by their checksums once they are written.
"""

from __future__ import annotations

import heapq
import math

from ...errors import CheckpointMismatch
from ...grid import Box, Grid, Layout, flat_span
from ..format.chunks import DIGITS, checksum, sum_at
from ..format.data_file import Block, sums_of
from ..format.manifest import ITEMSIZE
from ..state.flatten import Flat
from ..state.local_blocks import LocalBlock, LocalTensor
from ..state.same_structure import differences

CUT_FROM = 8 << 20
"""Bytes from which on a tensor that all workers hold is cut among them."""

Shares = dict[str, list[tuple[int, Box | None]]]
"""Key -> (writer, box) of every block of a tensor that all workers hold; the writer is a place among the workers."""


def shares_of(tensors: dict[str, LocalTensor], workers: int) -> Shares:
    """Which worker writes which block of the tensors that all workers hold."""
    everywhere = [(key, x) for key, x in tensors.items() if x.everywhere and 0 not in x.shape]
    if workers == 1:
        return {key: [(0, None)] for key, _ in everywhere}
    loads = [(0, place) for place in range(workers)]
    shares: Shares = {}
    for key, x in sorted(everywhere, key=lambda item: -_nbytes(item[1])):
        if _nbytes(x) >= CUT_FROM and x.shape[0] >= workers:
            grid = Grid(tuple(range(workers)), (workers, *(1 for _ in x.shape[1:])))
            shares[key] = list(Layout.balanced(grid, x.shape).blocks())
        else:
            load, place = heapq.heappop(loads)
            heapq.heappush(loads, (load + _nbytes(x), place))
            shares[key] = [(place, None)]
    return shares


def _nbytes(x: LocalTensor) -> int:
    return math.prod(x.shape) * ITEMSIZE[x.code]


def blocks_to_write(flat: Flat, shares: Shares, place: int) -> list[Block]:
    """The blocks that the worker at `place` writes."""
    blocks = []
    for tensors in (flat.tensors, flat.own_tensors):
        for key, x in tensors.items():
            if x.everywhere:
                for writer, box in shares.get(key, ()):
                    if writer == place:
                        blocks.append(block_of(key, x, x.parts[0], box))
                continue
            for part in x.parts:
                if part.owned and (part.size or part.data.numel()):
                    blocks.append(block_of(key, x, part, part.box))
    return blocks


def block_of(key: str, x: LocalTensor, part: LocalBlock, box: Box | None) -> Block:
    """The block `box` (None: the whole) of a tensor; if `part` is the whole tensor, some of its rows."""
    code, shape, _, _ = x
    if box is None:
        _, data, _, address, size = part
        return Block(key, code, None, shape, data, address, size or data.nbytes)
    nbytes = box.volume * ITEMSIZE[code]
    if part.address:
        before = flat_span(shape, box)[0] * ITEMSIZE[code] if part.box is None else 0
        return Block(key, code, box, box.shape, part.data, part.address + before, nbytes)
    data = part.data[box.start[0] : box.stop[0]] if part.box is None else part.data
    return Block(key, code, box, box.shape, data, 0, nbytes)


def same_sums(flat: Flat, shares: Shares, known: dict[tuple[str, int], str]) -> str:
    """A checksum of this worker's copy of each tensor that all workers hold; `known` has those of written blocks."""
    result = []
    for key, blocks in shares.items():
        x = flat.tensors[key]
        texts = [known.get((key, writer)) or sums_of(block_of(key, x, x.parts[0], box)) for writer, box in blocks]
        result.append(checksum("".join(texts).encode()))
    return "".join(result)


def check_same(shares: Shares, everyone: list[str], ranks: tuple[int, ...]) -> None:
    """Raise unless the tensors that all workers hold are equal, that is, all workers have the same `same_sums`."""
    if len(set(everyone)) == 1:
        return
    said = {
        rank: {key: f"checksum {sum_at(sums, place):0{DIGITS}x}" for place, key in enumerate(shares)}
        for rank, sums in zip(ranks, everyone, strict=True)
    }
    first, lines = differences(said)
    raise CheckpointMismatch(
        f"{first!r} is taken to be the same on all workers, but it is not.",
        lines,
        "`checkpoint.PerWorker(value)` keeps one for each worker; `gridwise.nn.Broadcast` makes them equal.",
    )
