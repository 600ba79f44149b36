"""The own block and the slabs of received rows add up to what the outputs see, corners and short blocks included."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridwise.grid import Box, Window, slabs_of


@st.composite
def dims(draw):
    """One dim: a window, outputs that torch would make of the padded rows, the own rows, and those that are not zero."""
    taps, step, stride, padding = (draw(st.integers(*ends)) for ends in ((1, 5), (1, 2), (1, 3), (0, 2)))
    extent = (taps - 1) * step + 1
    rows = draw(st.integers(max(1, extent - 2 * padding), max(7, extent)))
    first = draw(st.integers(0, rows - 1))
    last = draw(st.integers(first + 1, rows))
    filled = draw(st.integers(0, first)), draw(st.integers(last, rows))
    outputs = (rows + 2 * padding - extent) // stride + 1
    return Window(extent, stride, padding, step), outputs, rows, (first, last), filled


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
        some = [window.with_taps(slab.taps) if d == slab.dim else window for d, window in enumerate(windows)]
        y[place] += seen(box, slab.padding, some, [slab.taps[0] if d == slab.dim else 0 for d in range(len(some))])
    assert np.array_equal(y, seen(x, [window.padding for window in windows], windows))


def seen(x, padding, windows, firsts=None):
    """The sum of what each output sees, dim by dim, with weights that tell taps apart; `firsts` are the first of them."""
    firsts = firsts or [0] * len(windows)
    for d, (around, window, first) in enumerate(zip(padding, windows, firsts, strict=True)):
        x = np.pad(x, [(around, around) if e == d else (0, 0) for e in range(x.ndim)])
        count = (x.shape[d] - window.extent) // window.stride + 1
        starts = [window.stride * j for j in range(count)]
        taps = range(0, window.extent, window.step)
        weights = 1.0 + first + np.arange(len(taps))
        rows = [np.tensordot(weights, np.take(x, [a + tap for tap in taps], d), (0, d)) for a in starts]
        x = np.stack(rows, d)
    return x
