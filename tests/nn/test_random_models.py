"""Random models on random grids: equal to the sequential ones, or named as not convertible before they run."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from random_models import random_model

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.testing import check_equal_to_sequential, workers


def run(seed: int, count: int) -> str:
    rng = random.Random(f"{seed} {count}")
    shape = (rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 8), rng.randint(1, 8))
    axes = [1, 1, 1, 1]
    axes[rng.choice((0, 1, 2, 2, 3, 3))] *= count if count < 4 or rng.random() < 0.4 else 2
    if count == 4 and max(axes) == 2:
        axes[rng.choice([d for d in range(4) if axes[d] == 1])] = 2
    P_x = gridwise.world().create_cartesian_topology_partition(axes)
    torch.manual_seed(seed)
    sequential = random_model(rng, shape, rng.randint(2, 6))
    try:
        model = gridwise.distribute(
            copy.deepcopy(sequential), P_x, example=torch.empty(shape, dtype=torch.float64, device="meta")
        )
    except UnsupportedError:
        return "refused"
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    try:
        for _ in range(2):
            model.zero_grad()
            sequential.zero_grad()
            check_equal_to_sequential(model, sequential, x, P_x, model.P_y, rtol=1e-7, atol=1e-9)
    except Exception as error:
        raise AssertionError(f"case {seed} of {count}: {sequential.words} on {axes}: {error}") from error
    return "equal"


@workers(2, 3, 4, transports=("mpi",))
def test_random_models(gridwise_setting: tuple[str, int]) -> None:
    outcomes = [run(seed, gridwise_setting[1]) for seed in range(10)]
    assert outcomes.count("equal") > 7


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
@pytest.mark.parametrize("hundred", range(3))
def test_many_random_models(gridwise_setting: tuple[str, int], hundred: int) -> None:
    outcomes = [run(seed, gridwise_setting[1]) for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred)]
    if gridwise.world().rank == 0:
        print(f"\n{outcomes.count('equal')} equal, {outcomes.count('refused')} refused")
