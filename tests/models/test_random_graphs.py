"""Random models on random grids equal the sequential ones, or are refused; nothing else."""

from __future__ import annotations

import pytest

from gridwise.errors import UnsupportedError

from .equality import compare_on_threads
from .random_graphs import case


def check(seed: int) -> bool:
    """Whether the model of a seed is equal; False if it is refused."""
    model, x, grid = case(seed)
    try:
        errors, _ = compare_on_threads(model, [x], grid)
    except UnsupportedError:
        return False
    assert max(errors.values()) < 1e-9, (seed, grid, {name: error for name, error in errors.items() if error > 1e-9})
    return True


def test_a_handful() -> None:
    assert sum(check(seed) for seed in range(12)) >= 10


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 100)) >= 90
