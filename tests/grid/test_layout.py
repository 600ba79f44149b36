"""Layouts tile the tensor; pieces of boxes against arrays that count."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from gridwise.errors import PartitionError
from gridwise.grid import Box, Boxes, Grid, Layout

from .strategies import boxes, cases, layouts

EDGE = 5
dims = st.integers(0, 3)
lists_and_boxes = dims.flatmap(lambda dim: st.tuples(st.lists(boxes(dim, 0, EDGE), max_size=8), boxes(dim, 0, EDGE)))


def zeros(dim: int) -> Any:
    return np.zeros((EDGE,) * dim, dtype=int)


@cases(150, layout=dims.flatmap(layouts))
def test_blocks_tile_the_tensor(layout: Layout) -> None:
    owners = np.zeros(layout.global_shape, dtype=int)
    for rank, block in layout.blocks():
        assert block == layout.block(rank) == layout.block_at(layout.grid.index_of(rank))
        assert min(block.shape, default=0) >= 0
        owners[block.slices] += 1
    assert (owners == 1).all()


@cases(150, case=lists_and_boxes)
def test_pieces_of_any_list_of_boxes(case: tuple[list[Box], Box]) -> None:
    blocks, wanted = case
    source = Boxes.of(enumerate(blocks))
    held, found = zeros(len(wanted.start)), zeros(len(wanted.start))
    for block in blocks:
        held[block.slices] += 1
    for owner, piece in source.pieces(wanted):
        assert blocks[owner].contains(piece)
        found[piece.slices] += 1
    inside = zeros(len(wanted.start))
    inside[wanted.slices] = 1
    assert (found == held * inside).all()


def test_balanced_blocks_of_an_empty_tensor_and_of_none_at_all() -> None:
    empty = Layout.balanced(Grid((0, 1), (2, 1)), (0, 3))
    assert [block.shape for _, block in empty.blocks()] == [(0, 3), (0, 3)]
    scalar = Layout.balanced(Grid((4,), ()), ())
    assert list(scalar.blocks()) == [(4, Box((), ()))]


def test_a_tensor_with_other_dims_than_the_grid_is_refused() -> None:
    grid = Grid((0, 1), (2, 1))
    with pytest.raises(PartitionError, match="has 1 dims, the grid"):
        Layout.balanced(grid, (4,))
    with pytest.raises(PartitionError, match="needs a tensor of 2 dims, got 1"):
        Layout(grid, ((0, 1, 2),))


@pytest.mark.parametrize("cuts", [((0, 3, 2), (0, 4)), ((0, 2), (0, 4)), ((1, 2, 3), (0, 4))])
def test_cuts_that_do_not_fit_the_grid_are_refused(cuts: Any) -> None:
    with pytest.raises(PartitionError, match="never decrease"):
        Layout(Grid((0, 1), (2, 1)), cuts)
