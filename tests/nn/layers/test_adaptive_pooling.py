"""Adaptive pooling equals torch's on every grid, also where the size divides nothing."""

from __future__ import annotations

import torch
from equality import Case, check_all
from hypothesis import given
from hypothesis import strategies as st

from gridwise.grid import adaptive_need, adaptive_runs
from gridwise.testing import workers


def pool(kind, P_x, shape, size, **kwargs):
    return Case(f"Adaptive{kind}Pool{len(shape) - 2}d", P_x, shape, (size,), kwargs)


GRIDS = [
    pool("Avg", (1, 1, 2, 1), (2, 3, 16, 16), 1),
    pool("Avg", (1, 1, 2, 1), (2, 3, 17, 17), 1),
    pool("Avg", (1, 1, 2, 1), (2, 3, 16, 16), 4),
    pool("Avg", (1, 1, 3, 1), (2, 3, 17, 5), (7, None)),
    pool("Avg", (1, 1, 2, 2), (2, 3, 5, 4), (7, 9)),
    pool("Avg", (1, 1, 4), (2, 3, 10), 7),
    pool("Avg", (1, 1, 1, 2, 2), (2, 3, 5, 6, 7), (2, 3, 5)),
    pool("Max", (1, 1, 2, 1), (2, 3, 16, 16), 4),
    pool("Max", (1, 1, 3, 1), (2, 3, 17, 5), (7, 3), return_indices=True),
    pool("Max", (1, 1, 2, 2), (2, 3, 10, 11), (4, 7), return_indices=True),
    pool("Max", (1, 1, 4), (2, 3, 10), 3, return_indices=True),
    pool("Max", (1, 2, 1, 1, 2), (2, 3, 5, 6, 7), (2, 3, 5), return_indices=True),
]


@workers(1, 2, 3, 4)
def test_equal_to_torch(gridwise_setting):
    assert set(check_all(GRIDS, gridwise_setting[1])) <= {"equal"}


@given(st.integers(1, 40), st.integers(1, 20), st.data())
def test_runs_cover_the_outputs_and_restart_alike(extent, size, data):
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first + 1, size))
    runs = adaptive_runs((first, last), extent, size)
    assert [first, *(stop for _, stop in runs)] == [*(start for start, _ in runs), last]
    x = torch.arange(float(extent)).reshape(1, -1)
    expected = torch.nn.functional.adaptive_max_pool1d(x, size)[0]
    for start, stop in runs:
        a, b = adaptive_need((start, stop), extent, size)
        assert torch.equal(torch.nn.functional.adaptive_max_pool1d(x[:, a:b], stop - start)[0], expected[start:stop])
