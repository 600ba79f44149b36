"""Boxes and ranges of the flat index, against an array of its numbers."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridwise.grid import Box, boxes_of_range, flat_span, strides_of

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(shapes, st.data())
def test_boxes_of_a_range_are_that_range_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    total = math.prod(shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    flat = np.arange(total).reshape(shape)
    found = [int(i) for box in boxes_of_range(shape, start, stop) for i in flat[box.slices].ravel()]
    assert found == list(range(start, stop))


@given(shapes, st.data())
def test_the_span_of_a_box_reaches_from_its_first_to_its_last_element(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    start = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    box = Box(start, tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True)))
    numbers = np.arange(math.prod(shape)).reshape(shape)
    inside = numbers[box.slices].ravel().tolist()
    first, after = flat_span(shape, box)
    assert (first, after) == (inside[0], inside[-1] + 1)
    assert (after - first == box.volume) == (inside == list(range(first, after)))
    assert strides_of(shape) == tuple(n // numbers.itemsize for n in numbers.strides)
