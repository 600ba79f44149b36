"""A route: which pieces move from the blocks that workers own to the blocks that workers need.

Per dim, a need is an interval of integers, one for each place along the target's axis. With `wrap`, an index outside
``[0, n)`` means that index modulo n (circular); otherwise needs must lie inside. A need maps to *spans*

    (source start, length, target start)        step +1 only

by cutting it at the boundaries of the source's blocks. The D-dim route is the product of the 1-D lists, grouped into
one message per peer, with pieces in the same order on both sides. Forward copies pieces from source to target. The
adjoint sends the same pieces back and adds them: each piece is an identity block of the matrix, so this transposes it.

    owned   |  worker 0    |  worker 1    |  worker 2   |
    needed  |------worker 0----|
                       |-----worker 1-----|
                              |------worker 2---|------>  wraps around to worker 0

`Needs` looks at all intervals of an axis once. After that, the route of one worker costs a few bisections and its own
messages; it never loops over pairs of workers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from operator import itemgetter

from ..errors import PartitionError
from .box import Box
from .cuts import Cuts, Interval, blocks_meeting, interval
from .grid import Grid, Index
from .layout import Layout

Span = tuple[int, int, int]
"""Source start (in the owner's block), length, target start (in the need)."""


@dataclass(frozen=True)
class Needs:
    """What each worker of `grid` needs: per axis, one interval for each place along it, and whether indices wrap.

    Parameters
    ----------
    grid : the workers
    intervals : for each axis, what the workers at each place along it need
    wrap : for each dim, whether indices beyond an edge continue at the other; False for all if left out

    Examples
    --------
    >>> layout = gridwise.grid.Layout.balanced(gridwise.grid.Grid((0, 1), (2,)), (6,))
    >>> gridwise.grid.Needs.of_layout(layout).intervals
    (((0, 3), (3, 6)),)
    """

    grid: Grid
    intervals: tuple[tuple[Interval, ...], ...]
    wrap: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.wrap:
            object.__setattr__(self, "wrap", (False,) * self.grid.dim)
        places = tuple(len(intervals) for intervals in self.intervals)
        if places != self.grid.shape or len(self.wrap) != self.grid.dim:
            raise PartitionError(
                f"needs on a grid of shape {self.grid.shape} take one interval for each place along each axis and one "
                f"`wrap` per axis, got {places} intervals and {len(self.wrap)} `wrap`."
            )
        for d, intervals in enumerate(self.intervals):
            for start, stop in intervals:
                if start > stop:
                    raise PartitionError(f"a need cannot stop before it starts: [{start}, {stop}) of dim {d}.")

    @classmethod
    def of_layout(cls, layout: Layout) -> Needs:
        """The needs of workers that need exactly their blocks."""
        return cls(layout.grid, tuple(tuple(pairwise(cuts)) for cuts in layout.cuts))

    def along(self, dim: int, intervals: Iterable[Interval]) -> Needs:
        """The same needs with other intervals along one dim.

        >>> from gridwise.grid import Grid
        >>> Needs.of_layout(Layout.balanced(Grid((0, 1), (2,)), (6,))).along(0, [(0, 4), (2, 6)]).intervals
        (((0, 4), (2, 6)),)
        """
        return Needs(self.grid, (*self.intervals[:dim], tuple(intervals), *self.intervals[dim + 1 :]), self.wrap)

    def box_at(self, index: Index) -> Box:
        return Box.of_intervals(intervals[i] for intervals, i in zip(self.intervals, index, strict=True))

    def box(self, rank: int) -> Box:
        """The need of a worker, in global indices (which may lie outside the tensor where they wrap)."""
        return self.box_at(self.grid.index_of(rank))

    @cached_property
    def hull(self) -> tuple[Interval, ...]:
        """Per axis, the smallest interval that contains all needs."""
        filled = ([need for need in intervals if need[0] < need[1]] for intervals in self.intervals)
        return tuple((min(needs)[0], max(stop for _, stop in needs)) if needs else (0, 0) for needs in filled)

    @cached_property
    def ordered(self) -> tuple[bool, ...]:
        """Per axis, whether starts and stops never decrease, so that bisection finds which worker needs what."""
        return tuple(all(a <= c and b <= d for (a, b), (c, d) in pairwise(intervals)) for intervals in self.intervals)

    @cached_property
    def tiles(self) -> tuple[int | None, ...]:
        """Per axis, the n for which the intervals, in any order, cover [0, n) with each index once; else None."""

        def tiled(intervals: Sequence[Interval]) -> int | None:
            filled = sorted(need for need in intervals if need[0] < need[1])
            stops = [0, *(stop for _, stop in filled)]
            return stops[-1] if stops[:-1] == [start for start, _ in filled] else None

        return tuple(map(tiled, self.intervals))


@dataclass(frozen=True)
class Piece:
    """One box that moves: its position in the owner's block and in the box that the receiver needs.

    Parameters
    ----------
    source : its position in the owner's block
    target : its position in the box that the receiver needs

    Examples
    --------
    >>> layout = gridwise.grid.Layout.balanced(gridwise.grid.Grid((0, 1), (2,)), (6,))
    >>> needs = gridwise.grid.Needs(layout.grid, (((0, 4), (2, 6)),), (False,))
    >>> gridwise.grid.route(layout, needs, 0).receives[0].pieces[0].target.slices
    (slice(3, 4, None),)
    """

    source: Box
    target: Box


@dataclass(frozen=True)
class Message:
    """All pieces that one worker sends to another, in an order that both know.

    Parameters
    ----------
    peer : the other worker
    pieces : what is sent to it, or received from it

    Examples
    --------
    >>> layout = gridwise.grid.Layout.balanced(gridwise.grid.Grid((0, 1), (2,)), (6,))
    >>> needs = gridwise.grid.Needs(layout.grid, (((0, 4), (2, 6)),), (False,))
    >>> gridwise.grid.route(layout, needs, 0).receives[0].peer
    1
    """

    peer: int
    pieces: tuple[Piece, ...]

    @property
    def volume(self) -> int:
        return sum(piece.source.volume for piece in self.pieces)


@dataclass(frozen=True)
class Route:
    """One worker's part in a movement: what it owns, needs, sends, receives and keeps.

    `exact` means that every element is needed by exactly one worker, without wrapping (a repartition): the adjoint may
    then copy instead of adding. It is the same on all workers.

    Parameters
    ----------
    owned, needed : this worker's block before and after; None where it has none
    sends, receives : messages to and from peers
    kept : pieces that stay on this worker
    exact : see above

    Examples
    --------
    >>> layout = gridwise.grid.Layout.balanced(gridwise.grid.Grid((0, 1), (2,)), (6,))
    >>> needs = gridwise.grid.Needs(layout.grid, (((0, 4), (2, 6)),), (False,))
    >>> [message.peer for message in gridwise.grid.route(layout, needs, 0).sends]
    [1]
    """

    owned: Box | None
    needed: Box | None
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    kept: tuple[Piece, ...]
    exact: bool

    @property
    def is_identity(self) -> bool:
        """Whether the worker needs exactly what it owns and no other worker needs any of it: no copy, no message."""
        return self.owned == self.needed and not self.sends and not self.receives


def spans(own: Interval, need: Interval, extent: int, wrap: bool) -> Iterator[Span]:
    """The spans of `need` that lie in the block `own`, in the order of the target.

    >>> list(spans((0, 4), (-2, 3), 10, wrap=True)), list(spans((8, 10), (-2, 3), 10, wrap=True))
    ([(0, 3, 2)], [(0, 2, 0)])
    """
    for shift in _shifts(need, extent, wrap):
        start, stop = max(own[0] + shift, need[0]), min(own[1] + shift, need[1])
        if start < stop:
            yield start - shift - own[0], stop - start, start - need[0]


def route(source: Layout, needs: Needs, rank: int) -> Route:
    """The part of worker `rank` in moving a tensor from `source` to `needs`.

    Parameters
    ----------
    source : which worker owns what
    needs : which worker needs what
    rank : the worker in question

    Examples
    --------
    >>> layout = gridwise.grid.Layout.balanced(gridwise.grid.Grid((0, 1), (2,)), (6,))
    >>> needs = gridwise.grid.Needs(layout.grid, (((0, 4), (2, 6)),), (False,))
    >>> gridwise.grid.route(layout, needs, 0).needed.slices
    (slice(0, 4, None),)
    """
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
        exact=needs.tiles == source.global_shape,
    )


def check_needs(source: Layout, needs: Needs) -> None:
    """Raise unless the needs have as many dims as the tensor and lie inside it wherever they do not wrap."""
    if source.grid.dim != needs.grid.dim:
        raise PartitionError(
            f"cannot route from a grid of {source.grid.dim} axes to one of {needs.grid.dim}: "
            f"{source.grid.shape} -> {needs.grid.shape}.\n  fix: give both grids as many axes as the tensor has dims."
        )
    for d, (extent, (start, stop), wrap) in enumerate(zip(source.global_shape, needs.hull, needs.wrap, strict=True)):
        inside = 0 <= start <= stop <= extent
        if not inside and not (wrap and extent > 0):
            raise PartitionError(
                f"the workers need [{start}, {stop}) of dim {d}, but the tensor has only [0, {extent}) there"
                + (" and is empty: there is nothing to wrap." if wrap else ".")
            )


def _shifts(need: Interval, extent: int, wrap: bool) -> range:
    """The offsets, multiples of `extent`, of the periodic copies of the tensor that `need` may touch."""
    return range(need[0] // extent * extent, need[1], extent) if wrap and extent else range(1)


def _messages(source: Layout, needs: Needs, rank: int, sending: bool) -> dict[int, tuple[Piece, ...]]:
    """The pieces that `rank` sends, or receives, by peer; it is a peer of itself."""
    mine = (source.grid if sending else needs.grid).index_of(rank)
    theirs = needs.grid if sending else source.grid
    find = _who_needs if sending else _who_owns
    found = [find(source.cuts[d], needs, d, place) for d, place in enumerate(mine)]
    return {
        theirs.rank_at([place for place, _ in peer]): tuple(map(_piece, product(*(parts for _, parts in peer))))
        for peer in product(*found)
    }


def _who_needs(cuts: Cuts, needs: Needs, axis: int, block: int) -> list[tuple[int, list[Span]]]:
    """The places along `axis` that need a part of `block`, with its spans."""
    own, intervals, extent, wrap = interval(cuts, block), needs.intervals[axis], cuts[-1], needs.wrap[axis]
    places: Iterable[int] = range(len(intervals))
    if needs.ordered[axis]:
        places = {
            place
            for shift in _shifts(needs.hull[axis], extent, wrap)
            for place in range(
                bisect_right(intervals, own[0] + shift, key=itemgetter(1)),
                bisect_left(intervals, own[1] + shift, key=itemgetter(0)),
            )
        }
    found = ((place, list(spans(own, intervals[place], extent, wrap))) for place in places)
    return [(place, parts) for place, parts in found if parts]


def _who_owns(cuts: Cuts, needs: Needs, axis: int, place: int) -> list[tuple[int, list[Span]]]:
    """The blocks along `axis` that own a part of what `place` needs, with its spans."""
    need, extent, wrap = needs.intervals[axis][place], cuts[-1], needs.wrap[axis]
    blocks = {
        block
        for shift in _shifts(need, extent, wrap)
        for block in blocks_meeting(cuts, need[0] - shift, need[1] - shift)
    }
    return [(block, list(spans(interval(cuts, block), need, extent, wrap))) for block in blocks]


def _piece(parts: Sequence[Span]) -> Piece:
    start, length, target = zip(*parts, strict=True) if parts else ((), (), ())
    return Piece(
        Box(start, tuple(a + n for a, n in zip(start, length, strict=True))),
        Box(target, tuple(a + n for a, n in zip(target, length, strict=True))),
    )
