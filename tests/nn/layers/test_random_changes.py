"""Random changes to layers after construction: equal to torch's layer with the same change, or refused on all workers."""

from __future__ import annotations

import pytest
from changed_layers import attempt_all
from random_changes import random_trial

import gridwise
from gridwise.testing import workers


@workers(2, 4, transports=("mpi",))
def test_random_changes(gridwise_setting):
    count = gridwise_setting[1]
    outcomes = attempt_all({seed: random_trial(seed, count) for seed in range(40)})
    assert min(outcomes.values()) > 5


@workers(2, transports=("gloo",))
def test_random_changes_over_gloo():
    attempt_all({seed: random_trial(seed, 2) for seed in range(500, 520)})


@pytest.mark.soak
@workers(2, 4, transports=("mpi",))
@pytest.mark.parametrize("hundred", range(10))
def test_many_random_changes(gridwise_setting, hundred):
    count = gridwise_setting[1]
    first = 1000 + 100 * hundred
    outcomes = attempt_all({seed: random_trial(seed, count) for seed in range(first, first + 100)})
    if gridwise.world().rank == 0:
        print(f"\n{outcomes['equal']} equal, {outcomes['refused']} refused")
