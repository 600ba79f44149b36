"""The own block and the slabs of received rows add up to what the outputs see, corners and short blocks included."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridwise.grid import Box, Window, slabs_of


@st.composite
def dims(draw):
    """One dim: a window, outputs that torch would make of the padded rows, the own rows, and those that are not zero."""
    extent, stride, padding = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(0, 2))
    rows = draw(st.integers(max(1, extent - 2 * padding), 7))
    first = draw(st.integers(0, rows - 1))
    last = draw(st.integers(first + 1, rows))
    filled = draw(st.integers(0, first)), draw(st.integers(last, rows))
    outputs = (rows + 2 * padding - extent) // stride + 1
    return Window(extent, stride, padding), outputs, rows, (first, last), filled


@given(st.lists(dims(), min_size=1, max_size=3))
def test_parts_add_up_to_the_whole(lines):
    windows, outputs, rows, own, filled = zip(*lines, strict=True)
    found = slabs_of(windows, outputs, rows, own, filled)
    if found is None:
        for window, count, _, (first, last), _ in lines:
            around = first + window.padding
            if (last - first + 2 * around - window.extent) // window.stride + 1 != count:
                return
        raise AssertionError("torch can pad the own block")
    x = np.zeros(rows)
    inside = Box.of_intervals(filled)
    x[inside.slices] = np.random.default_rng(0).integers(1, 100, inside.shape)
    y = seen(x[Box.of_intervals(own).slices], found.padding, windows)
    for slab in found.slabs:
        box = np.zeros(slab.sees.shape)
        common = slab.received.intersect(slab.sees)
        box[common.relative_to(slab.sees).slices] = x[common.slices]
        first, last = slab.outputs
        place = (*(slice(None),) * slab.dim, slice(first, last))
        y[place] += seen(box, slab.padding, windows)
    assert np.array_equal(y, seen(x, [window.padding for window in windows], windows))


def seen(x, padding, windows):
    """The sum of what each output sees, dim by dim, with weights that tell rows apart."""
    for d, (around, window) in enumerate(zip(padding, windows, strict=True)):
        x = np.pad(x, [(around, around) if e == d else (0, 0) for e in range(x.ndim)])
        count = (x.shape[d] - window.extent) // window.stride + 1
        starts = [window.stride * j for j in range(count)]
        weights = 1.0 + np.arange(window.extent)
        rows = [np.tensordot(weights, np.take(x, range(a, a + window.extent), d), (0, d)) for a in starts]
        x = np.stack(rows, d)
    return x
