"""Pictures of layouts: which dims are drawn, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import gridwise
from gridwise.errors import PartitionError
from gridwise.grid import Grid, Layout

pytest.importorskip("matplotlib")

CUBE = Layout.balanced(Grid(tuple(range(8)), (2, 2, 2)), (4, 6, 8))


def test_dims_from_the_end_are_those_from_the_front() -> None:
    [front], [end] = (gridwise.show.owners(CUBE, dims=dims).axes for dims in ((0, 2), (-3, -1)))
    assert (end.get_xlabel(), end.get_ylabel()) == (front.get_xlabel(), front.get_ylabel()) == ("dim 2", "dim 0")
    assert [str(patch) for patch in end.patches] == [str(patch) for patch in front.patches]
    assert end.get_ylim() == (4, 0)


def test_one_dim_is_drawn_as_a_row() -> None:
    [ax] = gridwise.show.owners(Layout.balanced(Grid((0, 1, 2), (3,)), (9,))).axes
    assert ax.get_xlabel() == "dim 0"
    assert list(ax.get_yticks()) == []


@pytest.mark.parametrize("given", [{"dims": (0, 3)}, {"dims": (1,)}, {"dims": (-4, 0)}, {"needs": {"other": {}}}])
def test_what_cannot_be_drawn(given: dict[str, Any]) -> None:
    with pytest.raises(PartitionError, match=r"must name two of the 3 dims|'other', which is none of"):
        gridwise.show.owners({"cube": CUBE}, **given)
