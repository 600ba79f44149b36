"""Grids against numpy arrays of ranks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from gridwise.errors import PartitionError
from gridwise.grid import Grid, resolve_axes
from gridwise.grid.grid import ravel, unravel

from .strategies import cases, grids

any_grid = st.integers(0, 4).flatmap(grids)


def as_array(grid: Grid) -> Any:
    return np.array(grid.ranks).reshape(grid.shape)


@cases(150, grid=any_grid)
def test_places_and_coordinates_are_row_major(grid: Grid) -> None:
    array = as_array(grid)
    assert (grid.dim, grid.size) == (array.ndim, array.size)
    for place, rank in enumerate(grid.ranks):
        index = tuple(map(int, np.unravel_index(place, grid.shape)))
        assert rank in grid
        assert grid.place_of(rank) == place == ravel(index, grid.shape)
        assert grid.index_of(rank) == index == unravel(place, grid.shape)
        assert grid.rank_at(index) == array[index] == rank


@cases(150, grid=any_grid, data=st.data())
def test_a_team_is_a_slice_of_the_array(grid: Grid, data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(-grid.dim, grid.dim - 1))) if grid.dim else set()
    free = {axis % grid.dim for axis in axes}
    for rank in grid.ranks:
        index = tuple(slice(None) if axis in free else i for axis, i in enumerate(grid.index_of(rank)))
        assert grid.team_along(rank, axes) == tuple(np.ravel(as_array(grid)[index]).tolist())


@cases(150, grid=st.integers(1, 4).flatmap(grids), step=st.integers(-3, 3), data=st.data())
def test_a_neighbour_is_a_step_in_the_array(grid: Grid, step: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-grid.dim, grid.dim - 1))
    for rank in grid.ranks:
        index = list(grid.index_of(rank))
        index[axis] += step
        inside = 0 <= index[axis] < grid.shape[axis]
        assert grid.neighbour(rank, axis, step) == (as_array(grid)[tuple(index)] if inside else None)


@cases(100, dim=st.integers(1, 5), data=st.data())
def test_axes_are_sorted_distinct_and_counted_from_either_end(dim: int, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.integers(-dim, dim - 1)))
    assert resolve_axes(dim, axes) == tuple(sorted(set(np.arange(dim)[axes].tolist())) if axes else ())
    assert all(resolve_axes(dim, axis) == (axis % dim,) for axis in axes)


def test_a_grid_of_one_worker_without_axes() -> None:
    grid = Grid((3,), ())
    assert (grid.index_of(3), grid.rank_at(()), grid.team_along(3, ())) == ((), 3, (3,))


def test_a_line_and_equality() -> None:
    assert Grid.line(range(3)) == Grid((0, 1, 2), (3,))
    assert hash(Grid.line([2, 1])) == hash(Grid((2, 1), (2,)))
    assert 5 not in Grid.line(range(3))


@pytest.mark.parametrize(
    ("ranks", "shape", "says"),
    [
        ((0, 1, 2), (2, 2), "4 places, but 3 workers"),
        ((), (0,), "no place for a worker"),
        ((0, 1), (-1, -2), "no place for a worker"),
        ((), (), "1 places, but 0 workers"),
        ((1, 1), (2,), "twice"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(ranks: tuple[int, ...], shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(PartitionError, match=says):
        Grid(ranks, shape)


@pytest.mark.parametrize("index", [(2, 0), (0, -1), (0,), (0, 0, 0)])
def test_there_is_no_worker_outside_the_grid(index: tuple[int, ...]) -> None:
    with pytest.raises(PartitionError, match="no worker stands at"):
        Grid((0, 1, 2, 3), (2, 2)).rank_at(index)


def test_a_stranger_has_no_place() -> None:
    with pytest.raises(PartitionError, match="worker 7 is not one of the 2 workers"):
        Grid.line(range(2)).index_of(7)


def test_one_axis_may_be_a_number_of_numpy() -> None:
    number: Any = np.int64(-1)
    assert resolve_axes(3, number) == (2,)


@pytest.mark.parametrize(("dim", "axes"), [(2, (0, 2)), (2, -3), (0, 0)])
def test_an_axis_that_the_grid_does_not_have_is_refused(dim: int, axes: Any) -> None:
    with pytest.raises(PartitionError, match=f"the grid has {dim} axes"):
        resolve_axes(dim, axes, "axes_reduce")
