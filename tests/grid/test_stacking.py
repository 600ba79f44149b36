"""A box that is a stack is its pieces, one after the other."""

from __future__ import annotations

import pytest

from gridwise.grid import OWN, Grid, Layout, Needs, route, stacking_of


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
        stacking = stacking_of(plan, ((1, 2), (0, 0)))
        assert stacking is not None
        assert (stacking.dim, stacking.before, stacking.after) == (0, (1, 4), (2, 4))
        received = [piece.target for message in plan.receives for piece in message.pieces]
        ends = [(plan.kept[0].target if i == OWN else received[i]) for i in stacking.order]
        assert [box.start[0] for box in ends] == [0, *(box.stop[0] for box in ends[:-1])]
        assert ends[-1].stop[0] == plan.needed.shape[0]


def test_two_cut_dims_are_no_stack() -> None:
    assert stacking_of(halos((8, 8), (2, 2), 1, 0)) is None
    assert stacking_of(halos((8, 8), (2, 1), 1, 0), ((0, 0), (1, 1))) is None
