"""Roles: workers that do the same relative to their place on the grid. One of each role is run, and stands for the others.

Blocks on a grid are products of cuts along its axes, so what a worker does is composed of what it does along each axis. Two
places along an axis are of one kind if their blocks are equally long and workers there, all else being equal, do the same:
compute as much, hold as much, and send as many bytes as far in the same direction. A role is one kind of place along each
axis.

    1. along each axis, on a line of workers that hold a part of every tensor, find the kinds of places: where two places
       are of one kind and all blocks from one to the other are equally long, halos grow or shrink steadily with the
       place, so all places between them are of that kind too
    2. run one worker for each combination of kinds

Workers with empty blocks do not show what others do with theirs, so the line passes as close to the middle of the grid
as it can while avoiding empty blocks.

This is exact for models whose tensors all lie along the axes of the grid, whichever of their dims are cut. Where some lie on
other grids, each worker has peers of its own; then, and where there would be more than `MAX_ROLES` roles, workers at the
ends, in the middle and where blocks become shorter stand for those nearest to them, and the plan says that it is an
estimate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

import numpy as np

from ..comm.transports.counting import Entry
from ..grid import Grid, Layout
from .one_step import StepRecord

MAX_ROLES = 128
"""With more roles than this, some stand for others."""


@dataclass(frozen=True)
class Roles:
    """Which workers are run, and which others they stand for."""

    kinds: tuple[tuple[int, ...], ...]
    """For each axis, by place: the place of the same kind that is run."""
    exact: bool

    @property
    def weights(self) -> dict[int, int]:
        """By rank of each worker that is run: how many workers it stands for, itself included."""
        counted = [sorted(Counter(line).items()) for line in self.kinds]
        return {
            self._grid.rank_at([place for place, _ in chosen]): math.prod(n for _, n in chosen)
            for chosen in product(*counted)
        }

    def stand_in(self, rank: int) -> int:
        """The worker that is run in place of this one."""
        index = self._grid.index_of(rank)
        return self._grid.rank_at([line[i] for line, i in zip(self.kinds, index, strict=True)])

    @cached_property
    def _grid(self) -> Grid:
        return grid_of(list(map(len, self.kinds)))


def grid_of(shape: Sequence[int]) -> Grid:
    """The grid of that shape with its workers in order."""
    return Grid(tuple(range(math.prod(shape))), tuple(shape))


def steps_between(grid: Grid, rank: int, peer: int) -> tuple[int, ...]:
    """The steps from one worker to another along each axis."""
    return tuple(there - here for here, there in zip(grid.index_of(rank), grid.index_of(peer), strict=True))


Run = Callable[[int], tuple[StepRecord, Sequence[Entry]]]


def find_roles(shape: Sequence[int], run: Run, rows: Sequence[int]) -> Roles:
    """The roles on a grid of that shape; `run` runs a worker, `rows` is the shape of the input."""
    grid = grid_of(shape)
    estimate = Roles(tuple(_nearest(_typical(*line), line[0]) for line in zip(shape, rows, strict=True)), exact=False)
    layouts = run(grid.rank_at([extent // 2 for extent in shape]))[0].layouts.values()
    lengths = _block_lengths(layouts, grid)
    filled = [[place for place, each in enumerate(along) if 0 not in each] for along in lengths or ()]
    if lengths is None or not all(filled):
        return estimate
    base = [
        min(places, key=lambda place: abs(place - extent // 2)) for places, extent in zip(filled, shape, strict=True)
    ]
    kinds: list[tuple[int, ...]] = []
    for axis in range(len(shape)):

        def observed(place: int, axis: int = axis) -> Hashable:
            rank = grid.rank_at([*base[:axis], place, *base[axis + 1 :]])
            return signature(rank, grid, *run(rank)), lengths[axis][place]

        even = [False, *(a == b for a, b in pairwise(lengths[axis]))]
        kinds.append(_kinds_along(observed, even, base[axis]))
    if math.prod(len(set(line)) for line in kinds) > MAX_ROLES:
        return estimate
    return Roles(tuple(kinds), exact=True)


def signature(rank: int, grid: Grid, record: StepRecord, entries: Iterable[Entry]) -> Hashable:
    """What a worker does, relative to its place."""
    worker = record.worker
    sent: Counter[Hashable] = Counter()
    for entry in entries:
        if entry.kind != "control":
            where = steps_between(grid, rank, entry.peers[0]) if len(entry.peers) == 1 else len(entry.peers)
            sent[entry.what, entry.phase, entry.kind, where, entry.nbytes, entry.received] += 1
    work = [(place, w.calls, w.bytes, w.product_bytes, sum(w.flops.values())) for place, w in record.work.items()]
    return frozenset(sent.items()), tuple(sorted(work)), worker.memory, worker.activations


def _block_lengths(layouts: Iterable[Layout], grid: Grid) -> list[list[tuple[int, ...]]] | None:
    """For each axis, by place: how long the blocks there are, in all layouts; None if a layout is on another grid."""
    lengths: list[list[list[int]]] = [[[] for _ in range(extent)] for extent in grid.shape]
    known: dict[Grid, list[int | None] | None] = {}
    for layout in layouts:
        if layout.grid not in known:
            known[layout.grid] = _axes_of(layout.grid, grid)
        axes = known[layout.grid]
        if axes is None:
            return None
        for axis, cuts in zip(axes, layout.cuts, strict=True):
            if axis is not None:
                for place, (a, b) in enumerate(pairwise(cuts)):
                    lengths[axis][place].append(b - a)
    return [[tuple(each) for each in along] for along in lengths]


def _axes_of(inner: Grid, grid: Grid) -> list[int | None] | None:
    """For each axis of `inner`, the axis of `grid` along which its workers lie; None if there is none for one of them."""
    if inner.size != grid.size:
        return None
    places = np.empty((inner.dim, inner.size), dtype=np.int64)
    places[:, list(inner.ranks)] = np.unravel_index(np.arange(inner.size), inner.shape)
    wanted = np.array(np.unravel_index(np.arange(grid.size), grid.shape))
    axes: list[int | None] = []
    for place, extent in zip(places, inner.shape, strict=True):
        found = [a for a in range(grid.dim) if np.array_equal(place, wanted[a])]
        if extent > 1 and not found:
            return None
        axes.append(found[0] if extent > 1 else None)
    return axes


def _kinds_along(observe: Callable[[int], Hashable], even: Sequence[bool], base: int) -> tuple[int, ...]:
    """By place: the representative of its kind, `base` for its own. Looks at few places where many are alike.

    `even` says of each place whether its blocks are as long as those before it.
    """
    extent, found = len(even), dict[int, Hashable]()

    def look(place: int) -> Hashable:
        if place not in found:
            found[place] = observe(place)
        return found[place]

    todo = [(0, extent - 1)]
    while todo:
        first, last = todo.pop()
        if look(first) == look(last) and all(even[first + 1 : last + 1]):
            found.update(dict.fromkeys(range(first, last), found[first]))
        elif last - first > 1:
            middle = (first + last) // 2
            todo += [(first, middle), (middle, last)]
    names = {look(base): base}  # already run for the other axes
    return tuple(names.setdefault(found[place], place) for place in range(extent))


def _typical(extent: int, rows: int) -> list[int]:
    """Places at the ends, next to the ends, in the middle, and on both sides of where blocks become shorter."""
    chosen = {0, 1, extent // 2, extent - 2, extent - 1, rows % extent - 1, rows % extent}
    return sorted(chosen & set(range(extent)))


def _nearest(known: Sequence[int], extent: int) -> tuple[int, ...]:
    """By place: the nearest known place; only an end stands for an end."""
    inner = [place for place in known if 0 < place < extent - 1] or known
    return tuple(i if i in known else min(inner, key=lambda place: abs(place - i)) for i in range(extent))
