"""What workers need whose blocks of an output are cut by a grid: the boxes of an operator, one for each place on an axis.

A dim of an input follows at most one dim of the output. An axis of the grid then belongs to that dim of the input; dims
that follow none are whole on every worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from ..grid import Box, Grid, Interval, Layout
from ..grid import Needs as NeedsOnGrid
from .on_boxes import Needs
from .table import NotOnBoxes


def needs_of_blocks(needs: Needs, target: Layout) -> list[NeedsOnGrid]:
    """For each input, what the workers need for their blocks of an output with this layout.

    The grid of the needs has the axes of the target's grid, in the order of the input's dims; axes that no dim follows
    come first. Workers with an empty block along an axis need nothing of the dim that follows it.

    >>> from gridwise.grid import Grid, Layout
    >>> target = Layout.balanced(Grid((0, 1), (1, 2)), (3, 8))
    >>> (found,) = needs_of_blocks(lambda box: [box.grown([(0, 0), (1, 1)], (3, 8))], target)
    >>> found.intervals
    (((0, 3),), ((0, 5), (3, 8)))
    """
    fullest = [max(pairwise(cuts), key=lambda ends: ends[1] - ends[0]) for cuts in target.cuts]
    middle = needs(Box.of_intervals(fullest))
    places = [
        [needs(Box.of_intervals([*fullest[:a], ends, *fullest[a + 1 :]])) if ends[0] < ends[1] else None
         for ends in pairwise(cuts)]
        for a, cuts in enumerate(target.cuts)
    ]  # fmt: skip
    return [
        _of_one(box, [[None if each is None else each[i] for each in line] for line in places], target.grid)
        for i, box in enumerate(middle)
    ]


def _of_one(middle: Box, places: Sequence[Sequence[Box | None]], grid: Grid) -> NeedsOnGrid:
    """The needs of one input: `places` has its box for each place along each axis, None where there are no outputs."""
    axes: list[int | None] = []
    for d in range(len(middle.start)):
        own = _interval(middle, d)
        found = [
            a for a, line in enumerate(places) if any(box is not None and _interval(box, d) != own for box in line)
        ]
        if len(found) > 1 or (found and found[0] in axes):
            raise NotOnBoxes("a dim of its input depends on several dims of its output")
        axes.append(found[0] if found else None)
    for d, axis in enumerate(axes):
        if axis is None and d < grid.dim and d not in axes:
            axes[d] = d
    others = [a for a in range(grid.dim) if a not in axes and grid.shape[a] > 1]
    intervals = [*(((0, 1),) * grid.shape[a] for a in others)]
    for d, axis in enumerate(axes):
        line = (middle,) if axis is None else places[axis]
        intervals.append(tuple(_filled([None if box is None else _interval(box, d) for box in line])))
    order = [*others, *axes]
    if order == list(range(grid.dim)):
        return NeedsOnGrid(grid, tuple(intervals))
    return NeedsOnGrid(_turned(grid, order), tuple(intervals))


def _interval(box: Box, d: int) -> Interval:
    return box.start[d], box.stop[d]


def _filled(line: Sequence[Interval | None]) -> Iterator[Interval]:
    """The intervals; one that is missing is empty, and lies where the one before stops."""
    last = 0
    for interval in line:
        start, stop = (last, last) if interval is None else interval
        last = stop
        yield start, stop


def _turned(grid: Grid, order: Sequence[int | None]) -> Grid:
    """The workers of a grid, with its axes in another order, without those of length 1 that it lacks.

    Where the order has None there is a new one of length 1."""
    shape = [1 if axis is None else grid.shape[axis] for axis in order]
    ranks = []
    for index in product(*map(range, shape)):
        at = dict(zip(order, index, strict=True))
        ranks.append(grid.rank_at(tuple(at.get(axis, 0) for axis in range(grid.dim))))
    return Grid(tuple(ranks), tuple(shape))
