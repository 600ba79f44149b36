"""Roles: workers that do the same, seen from where they stand. One of each is run, and the others follow.

Blocks on a grid are products of cuts along its axes, so what a worker does is made of what it does along each axis. Two
places along an axis are alike if workers there, with everything else equal, do the same: compute as much, hold as much, and
send as many bytes as far in the same direction. A role is one kind of place along each axis.

    1. along each axis, through the middle of the grid, find the kinds of places: between two places of one kind, where all
       blocks are equally long, halos grow or shrink steadily with the place, so all places between are of that kind
    2. run one worker for each combination of kinds

This is exact for models whose tensors all lie on the axes of the grid. Where some lie on other grids, after a flatten say,
workers have peers of their own; then, and where there would be more than `MOST` roles, workers at the ends, in the middle and
where blocks become shorter stand for those nearest to them, and the plan says that it estimates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from ..comm.transports.counting import Entry
from ..grid import Grid, Layout
from .one_step import StepRecord

MOST = 128
"""Roles beyond which some are taken for others."""


@dataclass(frozen=True)
class Roles:
    """Who is run, and for whom it stands."""

    kinds: tuple[tuple[int, ...], ...]
    """For each axis, by place: the place of its kind that is run."""
    exact: bool

    @property
    def weights(self) -> dict[int, int]:
        """By rank of those that are run: for how many workers each stands."""
        grid = Grid(tuple(range(math.prod(self.shape))), self.shape)
        counted = [sorted(Counter(line).items()) for line in self.kinds]
        return {
            grid.rank_at([place for place, _ in chosen]): math.prod(n for _, n in chosen)
            for chosen in product(*counted)
        }

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.kinds))

    def stand_in(self, rank: int) -> int:
        """The worker that was run for this one."""
        grid = Grid(tuple(range(math.prod(self.shape))), self.shape)
        index = grid.index_of(rank)
        return grid.rank_at([line[i] for line, i in zip(self.kinds, index, strict=True)])


Run = Callable[[int], tuple[StepRecord, Sequence[Entry]]]


def find_roles(shape: Sequence[int], run: Run, rows: Sequence[int]) -> Roles:
    """The roles on a grid of that shape; `run` runs a worker, `rows` is the shape of the input."""
    grid = Grid(tuple(range(math.prod(shape))), tuple(shape))
    middle = [extent // 2 for extent in shape]
    layouts = run(grid.rank_at(middle))[0].layouts.values()
    if not all(_is_on(layout, grid) for layout in layouts):
        return Roles(tuple(_nearest(_typical(*line), line[0]) for line in zip(shape, rows, strict=True)), exact=False)
    kinds: list[tuple[int, ...]] = []
    for axis, extent in enumerate(shape):

        def seen(place: int, axis: int = axis) -> Hashable:
            rank = grid.rank_at([*middle[:axis], place, *middle[axis + 1 :]])
            return signature(rank, grid, *run(rank))

        kinds.append(_kinds_along(extent, seen, _even_stretches(extent, axis, layouts)))
    if math.prod(len(set(line)) for line in kinds) > MOST:
        return Roles(tuple(_nearest(_typical(*line), line[0]) for line in zip(shape, rows, strict=True)), exact=False)
    return Roles(tuple(kinds), exact=True)


def signature(rank: int, grid: Grid, record: StepRecord, entries: Iterable[Entry]) -> Hashable:
    """What a worker does, seen from where it stands."""
    own, worker = grid.index_of(rank), record.worker

    def away(peer: int) -> tuple[int, ...]:
        return tuple(there - here for there, here in zip(grid.index_of(peer), own, strict=True))

    sent = Counter(
        (e.what, e.phase, e.kind, away(e.peers[0]) if len(e.peers) == 1 else len(e.peers), e.nbytes, e.received)
        for e in entries
        if e.kind != "control"
    )
    work = [(place, w.calls, w.bytes, w.product_bytes, sum(w.flops.values())) for place, w in record.work.items()]
    return frozenset(sent.items()), tuple(sorted(work)), worker.memory, worker.activations


def _is_on(layout: Layout, grid: Grid) -> bool:
    """Whether a tensor is cut along axes of this grid alone, in their order."""
    return [n for n in layout.grid.shape if n > 1] == [n for n in grid.shape if n > 1]


def _even_stretches(extent: int, axis: int, layouts: Iterable[Layout]) -> list[bool]:
    """For each place, whether the block there is as long as the one before, in all layouts."""
    even = [True] * extent
    for layout in layouts:
        for length, cuts in zip(layout.grid.shape, layout.cuts, strict=True):
            if length == extent:  # perhaps another axis as long as this one, which only costs a look
                lengths = [b - a for a, b in pairwise(cuts)]
                for place in range(1, extent):
                    even[place] &= lengths[place] == lengths[place - 1]
    return even


def _kinds_along(extent: int, seen: Callable[[int], Hashable], even: Sequence[bool]) -> tuple[int, ...]:
    """By place: one of its kind, the same for all of them. Looks at few places where many are alike."""
    found: dict[int, Hashable] = {}

    def look(place: int) -> Hashable:
        if place not in found:
            found[place] = seen(place)
        return found[place]

    todo = [(0, extent - 1)]
    while todo:
        first, last = todo.pop()
        if look(first) == look(last) and all(even[first + 1 : last + 1]):
            found.update(dict.fromkeys(range(first, last), found[first]))
        elif last - first > 1:
            middle = (first + last) // 2
            todo += [(first, middle), (middle, last)]
    names = {look(extent // 2): extent // 2}  # which was run for the other axes too
    return tuple(names.setdefault(found[place], place) for place in range(extent))


def _typical(extent: int, rows: int) -> list[int]:
    """Places at the ends, next to the ends, in the middle, and on both sides of where blocks become shorter."""
    chosen = {0, 1, extent // 2, extent - 2, extent - 1, rows % extent - 1, rows % extent}
    return sorted(chosen & set(range(extent)))


def _nearest(known: Sequence[int], extent: int) -> tuple[int, ...]:
    """By place: the known one that is nearest to it; only an end stands for an end."""
    inner = [place for place in known if 0 < place < extent - 1] or known
    return tuple(i if i in known else min(inner, key=lambda place: abs(place - i)) for i in range(extent))
