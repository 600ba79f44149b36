"""Do these boxes fill that shape, each element exactly once?

Blocks of a grid are the cells of a product of cuts, which is seen in one pass over the boxes. Any other set of boxes is
compared pair by pair, and only up to a number that a foreign checkpoint may reasonably have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

from ..grid import Box, Shape

MOST_PAIRS = 4096
"""Boxes that are compared pair by pair."""


def tiling_problem(shape: Shape, boxes: Sequence[Box]) -> str | None:
    """What keeps the boxes from filling `shape` exactly once, or None.

    >>> tiling_problem((4,), [Box((0,), (2,)), Box((2,), (4,))]) is None
    True
    >>> tiling_problem((4,), [Box((0,), (2,)), Box((3,), (4,))])
    'hold 3 of 4 elements'
    """
    whole = Box.of_shape(shape)
    outside = next((box for box in boxes if not whole.contains(box)), None)
    if outside is not None:
        return f"reach outside of its shape {list(shape)}: {list(outside.start)} to {list(outside.stop)}"
    held, wanted = sum(box.volume for box in boxes), math.prod(shape)
    if held < wanted:
        return f"hold {held} of {wanted} elements"
    if not _are_cells_of_a_grid(shape, boxes):
        if len(boxes) > MOST_PAIRS:
            return f"are {len(boxes)}, and no grid"
        if any(a.intersect(b) for a, b in combinations(boxes, 2)):
            return "overlap one another"
    return None if held == wanted else f"hold {held} elements, it has {wanted}"


def _are_cells_of_a_grid(shape: Shape, boxes: Sequence[Box]) -> bool:
    filled = [box for box in boxes if box.volume]
    cells = 1
    for d in range(len(shape)):
        starts = sorted({box.start[d] for box in filled})
        ends = dict(pairwise([*starts, shape[d]]))
        if any(ends[box.start[d]] != box.stop[d] for box in filled):
            return False
        cells *= len(starts)
    return len({box.start for box in filled}) == len(filled) == cells
