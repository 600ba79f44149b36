"""Interior and boundary make up all outputs, each once, and see what the outputs see."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gridwise.grid import Window, interior_of


@st.composite
def dims(draw):
    """One dim: a window, so many outputs, so many fetched rows that they fit in, and the own ones among these."""
    window = Window(draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(0, 2)))
    outputs = draw(st.integers(1, 6))
    rows = max(1, window.sees((0, outputs))[1] - draw(st.integers(0, 2)))
    first = draw(st.integers(0, rows))
    return window, outputs, rows, (first, draw(st.integers(first, rows)))


@given(st.lists(dims(), min_size=1, max_size=3))
def test_every_output_is_made_once_from_what_it_sees(lines):
    windows, outputs, rows, own = zip(*lines, strict=True)
    found = interior_of(windows, outputs, rows, own)
    if found is None:
        for window, count, n, mine in lines:
            inside = [j for j in range(count) if mine == (0, n) or _within(window.sees((j, j + 1)), mine)]
            if not inside:
                return
        raise AssertionError("there is an interior")
    assert all(_within(seen, mine) for seen, mine in zip(_intervals(found.sees), own, strict=True))
    made = [
        made
        for box in (found.sees, *(box for pair in found.slabs for box in pair if box is not None))
        for made in product(
            *(
                range(count) if mine == (0, n) else _made(window, seen)
                for window, count, n, mine, seen in zip(windows, outputs, rows, own, _intervals(box), strict=True)
            )
        )
    ]
    assert sorted(made) == sorted(product(*map(range, outputs)))


def _intervals(box):
    return list(zip(box.start, box.stop, strict=True))


def _within(seen, rows):
    return rows[0] <= seen[0] and seen[1] <= rows[1]


def _made(window, seen):
    """The outputs that torch makes of just these rows, without padding."""
    first, rest = divmod(seen[0] + window.padding, window.stride)
    assert rest == 0
    return range(first, first + (seen[1] - seen[0] - window.extent) // window.stride + 1)
