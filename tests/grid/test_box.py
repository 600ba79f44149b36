"""Boxes against the sets of indices that they stand for."""

from itertools import product

import numpy as np
import pytest
from hypothesis import strategies as st

from gridwise.errors import PartitionError
from gridwise.grid import Box
from gridwise.grid.box import whole_numbers

from .strategies import boxes, cases

pairs = st.integers(0, 3).flatmap(lambda dim: st.tuples(boxes(dim), boxes(dim)))


def indices(box: Box) -> set[tuple[int, ...]]:
    return set(product(*map(range, box.start, box.stop)))


@cases(150, pair=pairs)
def test_a_box_is_a_set_of_indices(pair: tuple[Box, Box]) -> None:
    one, two = pair
    common = one.intersect(two)
    assert (indices(common) if common else set()) == indices(one) & indices(two)
    assert common is None or common.volume > 0
    assert one.contains(two) == (indices(two) <= indices(one))
    assert one.volume == len(indices(one))


@cases(100, pair=pairs)
def test_moving_a_box_moves_its_indices(pair: tuple[Box, Box]) -> None:
    one, two = pair
    moved = one.relative_to(two)
    assert moved.shape == one.shape
    assert moved.shifted(two.start) == one
    assert indices(moved) == {tuple(np.subtract(index, two.start).tolist()) for index in indices(one)}


@cases(100, box=st.integers(0, 3).flatmap(lambda dim: boxes(dim, low=0)))
def test_slices_cut_a_box_out_of_an_array(box: Box) -> None:
    array = np.empty((5,) * len(box.start))
    assert array[box.slices].shape == box.shape


def test_a_box_without_dims_is_one_element() -> None:
    box = Box.of_shape(())
    assert box.volume == 1
    assert box.intersect(box) == box
    assert box.contains(box)


def test_a_box_of_a_shape_starts_at_the_origin() -> None:
    assert Box.of_shape((2, 3)) == Box((0, 0), (2, 3))


def test_boxes_of_different_dims_do_not_mix() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Box.of_shape((2, 3)).intersect(Box.of_shape((2,)))


def test_a_box_is_never_negative() -> None:
    with pytest.raises(AssertionError):
        Box((2,), (1,))


def test_what_is_no_list_of_whole_numbers_is_shown() -> None:
    for given, shown in (((n for n in (1, "a")), r"\(1, 'a'\)"), ([1.5], r"\(1\.5,\)"), (3, "3")):
        with pytest.raises(PartitionError, match=rf"`shape` \(={shown}\) must be a list of whole numbers"):
            whole_numbers(given, "shape")
