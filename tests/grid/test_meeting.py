"""A box put together from pieces holds what it would hold, whatever the pieces are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridwise.grid import Box, meetings, sliced_need


@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=6),
    st.integers(0, 11),
    st.integers(1, 12),
    st.integers(0, 5),
)
def test_pieces_that_cover_a_line_fill_every_box_of_it(cuts: list[int], start: int, length: int, offset: int) -> None:
    cuts = sorted({0, 12, *cuts})
    pieces = [(Box((a,), (b,)), Box((offset,), (offset + b - a,))) for a, b in pairwise(cuts)]
    tensors = [np.full(offset + b - a, -1) for a, b in pairwise(cuts)]
    for tensor, (target, source) in zip(tensors, pieces, strict=True):
        tensor[source.slices] = np.arange(12)[target.slices]
    box = Box((start,), (min(12, start + length),))
    filled = np.full(box.shape, -1)
    for each in meetings(box, pieces):
        filled[each.there.slices] = tensors[each.piece][each.here.slices]
    assert filled.tolist() == list(range(box.start[0], box.stop[0]))


@given(st.integers(0, 20), st.integers(1, 20), st.integers(1, 5), st.data())
def test_a_slice_finds_its_outputs_in_what_it_needs(start: int, length: int, step: int, data: st.DataObject) -> None:
    rows = range(start, start + length, step)
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    a, b = sliced_need(rows, (first, last))
    assert list(range(a, b))[::step] == list(rows[first:last])
