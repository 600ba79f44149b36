"""Did the workers pass their blocks, or each of them the whole? Looked at once, before inputs of a new structure run.

Blocks that are the same, bit by bit, on all workers along a cut axis are hardly meant, unless they are constant or the
axis is that of the batch. A few elements are compared first, and all of them only if these agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from ..comm.transports.base import Team, Transport
from ..errors import SameBlocks
from ..nn.engine.agreement import Vote, is_on
from ..nn.parameters.replicas import checksum
from ..partition import CartesianPartition, Partition

SAMPLED = 1 << 12
"""How many elements of a block are compared first."""


def warn_of_same_blocks(
    transport: Transport, team: Team, what: str, blocks: Sequence[tuple[Tensor, Partition]]
) -> None:
    """Warn, on the first worker, of inputs that are the same along an axis; all workers of the team enter."""
    places = [
        (i, x, P)
        for i, (x, P) in enumerate(blocks)
        if isinstance(P, CartesianPartition) and max(P.shape[1:], default=1) > 1
    ]
    if not is_on() or not places:
        return
    found = _same(transport, team, what, [(_sampled(x), P) for _, x, P in places])
    if not any(found):
        return
    found = _same(transport, team, what, [(x, P) for _, x, P in places])
    for (i, _, P), axes in zip(places, found, strict=True):
        for axis in axes:
            text = (
                f"{what}: input {i} is the same on all workers along axis {axis} of its grid {P.shape}. Did you forget "
                "gridwise.local_slice? x[gridwise.local_slice(P_x, x.shape)] is a worker's block of the whole x. If equal "
                "blocks are meant: warnings.simplefilter('ignore', gridwise.errors.SameBlocks)."
            )
            with warnings.catch_warnings(record=transport.rank != team[0]):  # an error, if so filtered, is one on all
                warnings.warn(text, SameBlocks, stacklevel=2)


def _sampled(x: Tensor) -> Tensor:
    most = max(2, int(SAMPLED ** (1 / max(1, x.dim()))))
    return x.detach()[tuple(slice(None, None, max(1, -(-n // most))) for n in x.shape)]


def _same(
    transport: Transport, team: Team, what: str, blocks: Sequence[tuple[Tensor, CartesianPartition]]
) -> list[list[int]]:
    """The axes of each block along which it is the same on all workers, and is not constant."""
    vote = Vote()
    slots: list[list[tuple[int, list[int]]]] = []
    for x, P in blocks:
        index, digest = P.geometry.index_of(transport.rank), _digest(x)
        lines = []
        for axis, p in enumerate(P.shape):
            if axis and p > 1:
                own = _number(
                    [i for d, i in enumerate(index) if d != axis], [n for d, n in enumerate(P.shape) if d != axis]
                )
                lines.append((axis, [vote.equal(digest if own == line else None) for line in range(P.size // p)]))
        slots.append(lines)
    vote.count(transport, team, what)
    found = [[(axis, [vote.read(slot) for slot in line]) for axis, line in lines] for lines in slots]
    return [[axis for axis, line in lines if None not in line and any(line)] for lines in found]


def _number(index: Sequence[int], shape: Sequence[int]) -> int:
    number = 0
    for i, n in zip(index, shape, strict=True):
        number = number * n + i
    return number


def _digest(x: Tensor) -> int:
    """A hash that is 0 for constant, empty and pretended blocks."""
    if x.is_meta or x.numel() < 2 or bool((x == x.flatten()[0]).all()):
        return 0
    return checksum(x) | 1
