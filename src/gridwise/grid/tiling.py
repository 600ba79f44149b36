"""Check that boxes tile a shape: each element is covered exactly once.

Blocks of a grid are the cells of a product of cuts, which one pass over the boxes can verify. Any other set of boxes is
judged by its corners. The function that counts how many boxes cover an element is, in one dim,

    count   0 1 1 1 0        differences   +1 at the start of each box, -1 at its stop
              [     )

and in several dims the product of these: +1 or -1 at each corner of each box. The differences determine the count, so
boxes tile the shape if and only if their corners add up to those of the shape itself. With k dims cut, a box has 2^k
corners; small sets of boxes are compared pair by pair instead. The time grows with the number of boxes, not with its
square: a forged file must not keep a reader busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np

from .box import Box, Shape

FEW = 32
"""The most boxes that are compared pair by pair."""

MOST_DIMS = 6
"""The most cut dims of boxes that are judged by their corners."""

MOST_CORNERS = 1 << 20


def tiling_problem(shape: Shape, boxes: Sequence[Box]) -> str | None:
    """The reason why the boxes do not tile `shape`, or None.

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
    if held > wanted:
        return f"overlap one another: they hold {held} elements, it has {wanted}"
    filled = [box for box in boxes if box.volume]
    if _are_cells_of_a_grid(shape, filled):
        return None
    if len(filled) <= FEW:
        return "overlap one another" if any(a.intersect(b) for a, b in combinations(filled, 2)) else None
    cut = [d for d in range(len(shape)) if any(box.shape[d] != shape[d] for box in filled)]
    if len(cut) > MOST_DIMS or len(filled) << len(cut) > MOST_CORNERS:
        return f"form no grid, and {len(filled)} of them cut in {len(cut)} dims are too many to check"
    return None if corners_cancel(whole, filled, cut) else "overlap one another"


def _are_cells_of_a_grid(shape: Shape, filled: Sequence[Box]) -> bool:
    cells = 1
    for d in range(len(shape)):
        starts = sorted({box.start[d] for box in filled})
        ends = dict(pairwise([*starts, shape[d]]))
        if any(ends[box.start[d]] != box.stop[d] for box in filled):
            return False
        cells *= len(starts)
    return len({box.start for box in filled}) == len(filled) == cells


def corners_cancel(whole: Box, boxes: Sequence[Box], cut: Sequence[int]) -> bool:
    """Whether the corners of the boxes, in the dims `cut`, add up to those of `whole`."""
    if not cut:
        return len(boxes) == 1
    every = [whole, *boxes]
    starts = np.array([[box.start[d] for d in cut] for box in every], dtype=np.int64)
    stops = np.array([[box.stop[d] for d in cut] for box in every], dtype=np.int64)
    at_stop = np.indices((2,) * len(cut)).reshape(len(cut), -1).T.astype(bool)  # (2^k, k)
    corners = np.where(at_stop, stops[:, None], starts[:, None]).reshape(-1, len(cut))
    signs = np.tile(1 - 2 * (at_stop.sum(axis=1) % 2), len(every))
    signs[: len(at_stop)] *= -1  # the corners of `whole`
    order = np.lexsort(corners.T)
    corners, signs = corners[order], signs[order]
    firsts = np.flatnonzero(np.r_[True, (corners[1:] != corners[:-1]).any(axis=1)])
    return not np.add.reduceat(signs, firsts).any()
