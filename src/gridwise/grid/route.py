"""A route: which pieces move from the blocks that workers own to the blocks that workers need.

Per dim, a need is an interval of the integers, one for each place along the target's axis. With `wrap`, indices
outside ``[0, n)`` stand for the same index modulo n (circular), otherwise needs must lie inside. A need maps to *spans*

    (source start, length, target start)        step +1 only

by cutting it at the ends of the source's blocks. The D-dim route is the product of the 1-D lists, grouped into one
message per peer, pieces in the same order on both sides. Forward copies pieces from source to target. The adjoint
sends the same pieces back and adds them: it is the transpose, because each piece is an identity block of the matrix.

    owned   |  worker 0    |  worker 1    |  worker 2   |
    needed  |------worker 0----|
                       |-----worker 1-----|
                              |------worker 2---|------>  wraps round to worker 0

The route of one worker costs the sum of the axis extents plus its own messages, never the number of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from ..errors import PartitionError
from .box import Box
from .cuts import Cuts, Interval, blocks_meeting
from .grid import Grid, Index
from .layout import Layout

Span = tuple[int, int, int]
"""Source start, length, target start: all relative to the own block and to the own need."""


@dataclass(frozen=True)
class Needs:
    """What each worker of `grid` needs: per axis, one interval for each place along it."""

    grid: Grid
    intervals: tuple[tuple[Interval, ...], ...]
    wrap: tuple[bool, ...]

    @classmethod
    def of_layout(cls, layout: Layout) -> Needs:
        """Each worker needs exactly its block."""
        return cls(layout.grid, tuple(tuple(pairwise(cuts)) for cuts in layout.cuts), (False,) * layout.grid.dim)

    def box_at(self, index: Index) -> Box:
        ends = [intervals[i] for intervals, i in zip(self.intervals, index, strict=True)]
        return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))

    def box(self, rank: int) -> Box:
        """The need of a worker, in global indices (outside the tensor where it wraps)."""
        return self.box_at(self.grid.index_of(rank))


@dataclass(frozen=True)
class Piece:
    """One box that moves: where it lies in the owner's block, and where in the needing worker's box."""

    source: Box
    target: Box


@dataclass(frozen=True)
class Message:
    """All pieces between two workers, in one order that both know."""

    peer: int
    pieces: tuple[Piece, ...]

    @property
    def volume(self) -> int:
        return sum(piece.source.volume for piece in self.pieces)


@dataclass(frozen=True)
class Route:
    """One worker's part in a movement: what it owns, needs, sends, receives and keeps.

    `exact` tells that every element is needed by exactly one worker (a repartition): the adjoint may then copy
    instead of add.
    """

    owned: Box | None
    needed: Box | None
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    kept: tuple[Piece, ...]
    exact: bool

    @property
    def is_identity(self) -> bool:
        """Whether the worker needs just what it owns and nobody else needs it: no copy, no message."""
        return not self.sends and not self.receives and self.exact and self.owned == self.needed


def spans(own: Interval, need: Interval, extent: int, wrap: bool) -> Iterator[Span]:
    """The spans of `need` that `own` can serve, in the order of the target.

    >>> list(spans((0, 4), (-2, 3), 10, wrap=True)), list(spans((8, 10), (-2, 3), 10, wrap=True))
    ([(0, 3, 2)], [(0, 2, 0)])
    """
    turns = range(need[0] // extent, (need[1] - 1) // extent + 1) if wrap and extent and need[0] < need[1] else (0,)
    for turn in turns:
        shift = turn * extent
        start, stop = max(own[0] + shift, need[0]), min(own[1] + shift, need[1])
        if start < stop:
            yield start - shift - own[0], stop - start, start - need[0]


def route(source: Layout, needs: Needs, rank: int) -> Route:
    """The part of worker `rank` in moving a tensor from `source` to `needs`."""
    check_needs(source, needs)
    owned = source.block(rank) if rank in source.grid else None
    needed = needs.box(rank) if rank in needs.grid else None
    sends = _messages(source, needs, rank, sending=True) if owned is not None else {}
    receives = _messages(source, needs, rank, sending=False) if needed is not None else {}
    kept = sends.pop(rank, ())
    receives.pop(rank, None)
    return Route(
        owned,
        needed,
        tuple(Message(peer, pieces) for peer, pieces in sorted(sends.items())),
        tuple(Message(peer, pieces) for peer, pieces in sorted(receives.items())),
        kept,
        _is_exact(source, needs),
    )


def check_needs(source: Layout, needs: Needs) -> None:
    """Raise unless the needs fit the tensor: same number of dims, and inside it wherever they do not wrap."""
    if source.grid.dim != needs.grid.dim:
        raise PartitionError(
            f"cannot route from a grid of {source.grid.dim} axes to one of {needs.grid.dim}: "
            f"{source.grid.shape} -> {needs.grid.shape}.\n  fix: give both grids as many axes as the tensor has dims."
        )
    for d, (extent, intervals, wrap) in enumerate(zip(source.global_shape, needs.intervals, needs.wrap, strict=True)):
        for start, stop in intervals:
            inside = 0 <= start <= stop <= extent or start == stop
            if start > stop or not (inside or (wrap and extent > 0)):
                raise PartitionError(
                    f"a worker needs [{start}, {stop}) of dim {d}, but the tensor has only [0, {extent}) there"
                    + (" and is empty: there is nothing to wrap." if wrap else ".")
                )


def _messages(source: Layout, needs: Needs, rank: int, sending: bool) -> dict[int, tuple[Piece, ...]]:
    """Peer -> pieces, for what `rank` sends or for what it receives (itself included)."""
    mine = (source.grid if sending else needs.grid).index_of(rank)
    peers: list[list[tuple[int, list[Span]]]] = []
    for d, i in enumerate(mine):
        if sending:
            found = _who_needs(source.cuts[d], i, needs.intervals[d], needs.wrap[d])
        else:
            found = _who_owns(source.cuts[d], needs.intervals[d][i], needs.wrap[d])
        peers.append(found)
    grid = needs.grid if sending else source.grid
    return {
        grid.rank_at([place for place, _ in choice]): tuple(map(_piece, product(*(found for _, found in choice))))
        for choice in product(*peers)
    }


def _who_needs(cuts: Cuts, block: int, needs: Sequence[Interval], wrap: bool) -> list[tuple[int, list[Span]]]:
    own = (cuts[block], cuts[block + 1])
    found = ((place, list(spans(own, need, cuts[-1], wrap))) for place, need in enumerate(needs))
    return [(place, parts) for place, parts in found if parts]


def _who_owns(cuts: Cuts, need: Interval, wrap: bool) -> list[tuple[int, list[Span]]]:
    extent = cuts[-1]
    wraps = wrap and not 0 <= need[0] <= need[1] <= extent
    places = range(len(cuts) - 1) if wraps else blocks_meeting(cuts, *need)
    found = ((place, list(spans((cuts[place], cuts[place + 1]), need, extent, wrap))) for place in places)
    return [(place, parts) for place, parts in found if parts]


def _piece(parts: Sequence[Span]) -> Piece:
    start, length, target = zip(*parts, strict=True) if parts else ((), (), ())
    return Piece(
        Box(start, tuple(a + n for a, n in zip(start, length, strict=True))),
        Box(target, tuple(a + n for a, n in zip(target, length, strict=True))),
    )


def _is_exact(source: Layout, needs: Needs) -> bool:
    for extent, intervals in zip(source.global_shape, needs.intervals, strict=True):
        filled = [(start, stop) for start, stop in intervals if start < stop]
        if [0, *(stop for _, stop in filled)] != [*(start for start, _ in filled), extent]:
            return False
    return True
