"""A box that is a stack is its pieces, one after the other."""

from __future__ import annotations

import pytest

from gridwise.grid import OWN, Grid, Layout, Needs, borders_of, route, stacking_of


def halos(shape: tuple[int, ...], extents: tuple[int, ...], halo: int, rank: int):
    grid = Grid(tuple(range(extents[0] * extents[1])), extents)
    layout = Layout.balanced(grid, shape)
    needs = tuple(
        tuple((max(0, a - halo), min(n, b + halo)) for a, b in line)
        for line, n in zip(Needs.of_layout(layout).intervals, shape, strict=True)
    )
    return route(layout, Needs(grid, needs, (False, False)), rank)


@pytest.mark.parametrize("halo", [1, 2, 5])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_pieces_of_one_cut_dim_fill_it_in_order(workers: int, halo: int) -> None:
    for rank in range(workers):
        plan = halos((11, 4), (workers, 1), halo, rank)
        stacking = stacking_of(plan)
        assert stacking is not None
        assert stacking.dim == 0
        received = [piece.target for message in plan.receives for piece in message.pieces]
        ends = [(plan.kept[0].target if i == OWN else received[i]) for i in stacking.order]
        assert [box.start[0] for box in ends] == [0, *(box.stop[0] for box in ends[:-1])]
        assert ends[-1].stop[0] == plan.needed.shape[0]


def test_two_cut_dims_are_no_stack() -> None:
    assert stacking_of(halos((8, 8), (2, 2), 1, 0)) is None


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_stack_has_borders_where_each_is_one_piece_or_a_margin(rank: int) -> None:
    margins = ((2 if rank == 0 else 0, 2 if rank == 2 else 0), (0, 0))
    plan = halos((12, 4), (3, 1), 2, rank)
    borders = borders_of(plan, margins)
    assert borders is not None
    assert (borders.dim, borders.reach) == (0, 2)
    assert [side.is_first for side in borders.sides] == {0: [False], 1: [True, False], 2: [True]}[rank]
    for side in borders.sides:
        piece = plan.receives[side.number].pieces[0].target
        assert (piece.start[0] == 0) == side.is_first


def test_no_borders_where_they_reach_differently_far_or_come_from_several_workers() -> None:
    assert borders_of(halos((12, 4), (3, 1), 2, 0)) is None, "nothing before the first rows"
    assert borders_of(halos((12, 4), (3, 1), 2, 0), ((1, 0), (0, 0))) is None
    assert borders_of(halos((12, 4), (3, 1), 2, 1), ((1, 1), (0, 0))) is None, "rows and a margin on one side"
    assert borders_of(halos((6, 4), (6, 1), 2, 2)) is None, "rows of two workers"
    assert borders_of(halos((12, 4), (3, 1), 0, 1)) is None
