"""Boxes that fill a shape exactly once: grids, bricks, very many, and random ones against all pairs."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridwise.grid import Box, Grid, Layout, tiling, tiling_problem
from gridwise.grid.tiling import corners_cancel


def test_blocks_of_a_grid_fill_its_shape() -> None:
    layout = Layout(Grid(tuple(range(6)), (3, 2)), ((0, 2, 2, 7), (0, 1, 5)))
    boxes = [box for _, box in layout.blocks()]
    assert tiling_problem((7, 5), boxes) is None
    assert "of 35" in str(tiling_problem((7, 5), boxes[1:]))
    assert tiling_problem((7, 5), [*boxes, boxes[0]]) is not None
    assert "outside" in str(tiling_problem((7, 4), boxes))


def test_blocks_that_are_no_grid_are_compared_with_one_another() -> None:
    brick = [Box((0, 0), (1, 3)), Box((0, 3), (1, 4)), Box((1, 0), (2, 2)), Box((1, 2), (2, 4))]
    assert tiling_problem((2, 4), brick) is None
    moved = [*brick[:3], Box((1, 1), (2, 3))]
    assert tiling_problem((2, 4), moved) == "overlap one another"


def test_very_many_blocks_that_are_no_grid_are_judged_by_their_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "MOST_CORNERS", 1 << 15)
    boxes = [Box((i, ends[0]), (i + 1, ends[1])) for i in range(4_500) for ends in ((0, 1 + i % 2), (1 + i % 2, 3))]
    assert tiling_problem((2_000, 3), boxes[:4_000]) is None
    moved = [boxes[0], boxes[0], *boxes[2:4_000], Box((1, 0), (2, 1))]
    assert tiling_problem((2_000, 3), moved) == "overlap one another"
    assert "no grid" in str(tiling_problem((4_500, 3), boxes))


@given(st.data())
def test_corners_say_what_pairs_say(data: st.DataObject) -> None:
    """A box is cut in two again and again, at random; then perhaps one of the boxes is put elsewhere."""
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    boxes = [Box.of_shape(shape)]
    for _ in range(data.draw(st.integers(0, 12))):
        place, d = data.draw(st.integers(0, len(boxes) - 1)), data.draw(st.integers(0, len(shape) - 1))
        box = boxes[place]
        if box.shape[d] > 1:
            at = data.draw(st.integers(box.start[d] + 1, box.stop[d] - 1))
            boxes[place] = Box(box.start, (*box.stop[:d], at, *box.stop[d + 1 :]))
            boxes.append(Box((*box.start[:d], at, *box.start[d + 1 :]), box.stop))
    if data.draw(st.booleans()):
        moved = boxes.pop()
        start = [data.draw(st.integers(0, n - extent)) for n, extent in zip(shape, moved.shape, strict=True)]
        boxes.append(Box(tuple(start), tuple(a + n for a, n in zip(start, moved.shape, strict=True))))
    cut = [d for d in range(len(shape)) if any(box.shape[d] != shape[d] for box in boxes)]
    apart = not any(a.intersect(b) for a, b in combinations(boxes, 2))
    assert (tiling_problem(shape, boxes) is None) == apart
    assert corners_cancel(Box.of_shape(shape), boxes, cut) == apart
