"""Flat ranges as boxes, and the chunks that hold a box: against brute force."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gridwise.checkpoint.format import chunks, tiling
from gridwise.checkpoint.format.tiling import corners_cancel, tiling_problem
from gridwise.grid import Box, Grid, Layout

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(shapes, st.data())
def test_boxes_of_a_range_are_that_range_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    total = math.prod(shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    flat = np.arange(total).reshape(shape)
    found = [int(i) for box in chunks.boxes_of_range(shape, start, stop) for i in flat[box.slices].ravel()]
    assert found == list(range(start, stop))


@given(shapes, st.data())
def test_the_chunks_of_a_box_are_those_with_its_elements(shape: tuple[int, ...], data: st.DataObject) -> None:
    start = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    stop = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))
    box = Box(start, stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 8 * data.draw(st.integers(1, 7)))
        per_chunk = chunks.CHUNK // 8
        flat = np.arange(math.prod(shape)).reshape(shape)
        assert list(chunks.chunk_range(shape, 8, box)) == sorted(
            {int(i) // per_chunk for i in flat[box.slices].ravel()}
        )


@given(shapes, st.booleans())
def test_chunks_of_any_tensor_are_its_bytes(shape: tuple[int, ...], turned: bool) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    x = x.permute(tuple(reversed(range(x.dim())))) if turned else x
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 24)
        parts = [bytes(part) for part in chunks.chunks_of(x)]
    assert all(len(part) <= 24 for part in parts)
    assert b"".join(parts) == x.contiguous().numpy().tobytes()


def test_lazily_conjugated_and_negated_tensors_are_stored_as_their_values() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert b"".join(chunks.chunks_of(x.conj())) == x.conj().resolve_conj().numpy().tobytes()
    assert b"".join(chunks.chunks_of(x.conj().imag)) == (-x.imag).contiguous().numpy().tobytes()


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
