"""Random configurations: each is equal to torch's, or refused on all workers before anything was sent."""

from __future__ import annotations

import pytest
from equality import check_all
from random_layers import random_case

import gridwise
from gridwise.testing import workers


@workers(1, 2, 3, 4, transports=("mpi",))
def test_random_layers(gridwise_setting):
    count = gridwise_setting[1]
    outcomes = check_all([random_case(seed, count) for seed in range(30)], count)
    assert outcomes.count("equal") > 15


@workers(3, transports=("gloo",))
def test_random_layers_over_gloo():
    check_all([random_case(seed, 3) for seed in range(500, 515)], 3)


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
@pytest.mark.parametrize("hundred", range(10))
def test_many_random_layers(gridwise_setting, hundred):
    count = gridwise_setting[1]
    outcomes = check_all(
        [random_case(seed, count) for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred)], count
    )
    if gridwise.world().rank == 0:
        print(f"\n{outcomes.count('equal')} equal, {outcomes.count('refused')} refused")
