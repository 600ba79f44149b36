"""Layer norm and group norm equal torch's over any cut dims."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

import gridwise
from gridwise.grid import Layout
from gridwise.nn.layers import standardise
from gridwise.testing import check_equal_to_sequential, check_gradients, workers

nn = gridwise.nn


def grids(workers: int, dim: int) -> list[tuple[int, ...]]:
    choices = [p for p in range(1, workers + 1) if workers % p == 0]
    return [shape for shape in itertools.product(choices, repeat=dim) if torch.Size(shape).numel() == workers]


def run_case(
    name: str,
    arguments: tuple,
    options: dict[str, Any],
    shape: tuple[int, ...],
    grid: tuple[int, ...],
    cuts: Any = None,
) -> None:
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    sequential = getattr(torch.nn, name)(*arguments, dtype=torch.float64, **options)
    for value in sequential.parameters():
        value.data.copy_(torch.rand_like(value) + 0.5)
    layer = getattr(nn, f"Distributed{name}")(P_x, *arguments, dtype=torch.float64, **options)
    layer.load_state_dict(sequential.state_dict())
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2 + 1
    check_equal_to_sequential(layer, sequential, x, P_x, layout=Layout(P_x.geometry, cuts) if cuts else None)


@workers(4, transports=("mpi",))
def test_teams_too_large_for_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standardise, "FEW", 1)
    for grid in ((1, 1, 4), (1, 2, 2), (2, 1, 2)):
        run_case("BatchNorm1d", (6,), {}, (4, 6, 5), grid)
        run_case("LayerNorm", ((6, 5),), {}, (4, 6, 5), grid)
        for groups in (1, 3, 6):
            run_case("GroupNorm", (groups, 6), {}, (4, 6, 5), grid)


LAYER_OPTIONS = [{}, {"eps": 1e-3}, {"elementwise_affine": False}, {"bias": False}]


@workers(1, 2, 3, 4)
def test_layer_norm(gridwise_setting: tuple[str, int]) -> None:
    shape = (3, 5, 4)
    for grid in grids(gridwise.world().size, 3):
        for own in (1, 2, 3):
            for options in LAYER_OPTIONS if gridwise_setting[0] == "mpi" else LAYER_OPTIONS[:1]:
                run_case("LayerNorm", (shape[3 - own :],), options, shape, grid)


@workers(1, 2, 3, 4)
def test_group_norm(gridwise_setting: tuple[str, int]) -> None:
    for shape in ((2, 6), (2, 6, 3), (2, 6, 3, 4)) if gridwise_setting[0] == "mpi" else ((2, 6, 3),):
        for grid in grids(gridwise.world().size, len(shape)):
            for groups in (1, 2, 3, 6) if len(shape) > 2 else (1, 2):
                for options in ({}, {"affine": False}) if gridwise_setting[0] == "mpi" else ({},):
                    run_case("GroupNorm", (groups, 6), options, shape, grid)


@workers(1, 2)
def test_groups_of_one_value() -> None:
    """Torch takes them, and returns the bias, unless there is a single sample."""
    grid = (gridwise.world().size, 1, 1)
    run_case("GroupNorm", (4, 4), {}, (3, 4, 1), grid)
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    layer = nn.DistributedGroupNorm(P_x, 4, 4)
    with pytest.raises(gridwise.errors.PartitionError, match="more than 1 value per group"):
        layer(torch.ones(1 if gridwise.world().rank == 0 else 0, 4, 1))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch.nn.GroupNorm(4, 4)(torch.ones(1, 4, 1))


def random_case(rng: random.Random, workers: int) -> None:
    channels = rng.choice((2, 3, 4, 6))
    shape = (rng.randint(1, 4), channels, *(rng.randint(1, 5) for _ in range(rng.randint(1, 2))))
    grid = rng.choice(grids(workers, len(shape)))
    name = rng.choice(("LayerNorm", "GroupNorm"))
    own = rng.randint(1, len(shape) - 1)
    fixed = {1} if name == "GroupNorm" else set(range(len(shape) - own, len(shape)))
    cuts = tuple(
        gridwise.grid.balanced_cuts(n, p) if d in fixed else (0, *sorted(rng.randint(0, n) for _ in range(p - 1)), n)
        for d, (n, p) in enumerate(zip(shape, grid, strict=True))
    )
    if name == "GroupNorm":
        groups = rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
        if groups == channels and torch.Size(shape[2:]).numel() == 1:
            groups = 1
        run_case(name, (groups, channels), {}, shape, grid, cuts)
    else:
        run_case(name, (shape[len(shape) - own :],), rng.choice(LAYER_OPTIONS), shape, grid, cuts)


@workers(2, 3, 4, transports=("mpi",))
def test_random_configurations() -> None:
    for seed in range(12):
        random_case(random.Random(seed), gridwise.world().size)


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
def test_many_random_configurations() -> None:
    for seed in range(1000, 1300):
        random_case(random.Random(seed), gridwise.world().size)


@workers(2)
def test_gradients_of_gradients_and_halves() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 2, 1])
    group = nn.DistributedGroupNorm(P_x, 2, 4, dtype=torch.float64)
    check_gradients(lambda x: group(x) ** 2, torch.randn(2, 2, 3, dtype=torch.float64))
    layer = nn.DistributedLayerNorm(P_x, (4, 3), dtype=torch.float64)
    check_gradients(lambda x: layer(x) ** 2, torch.randn(2, 2, 3, dtype=torch.float64))
    assert group.bfloat16()(torch.randn(2, 2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with pytest.raises(gridwise.errors.PartitionError, match="must be divisible by num_groups"):
        nn.DistributedGroupNorm(P_x, 3, 4)
    with pytest.raises(gridwise.errors.PartitionError, match="normalises 4 dims"):
        nn.DistributedLayerNorm(P_x, (1, 2, 3, 4))


@workers(1, 2)
@pytest.mark.parametrize("name", ["BatchNorm2d", "InstanceNorm2d", "GroupNorm"])
def test_channels_last_far_from_zero_loses_no_digits(name):
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    arguments = (2, 4) if name == "GroupNorm" else (4,)
    x = 1000 + torch.randn(2, 4, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = getattr(torch.nn, name)(*arguments).double()(x)[gridwise.local_slice(P_x, x.shape)]
    mine = x[gridwise.local_slice(P_x, x.shape)].float().to(memory_format=torch.channels_last)
    layer = getattr(gridwise.nn, f"Distributed{name}")(P_x, *arguments)
    for _ in range(2):
        assert (layer(mine) - expected).abs().max() < 1e-3


@workers(2)
def test_group_norm_of_nothing():
    P_x = gridwise.world().create_cartesian_topology_partition([2, 1, 1])
    assert gridwise.nn.DistributedGroupNorm(P_x, 2, 4)(torch.ones(1, 4, 0)).shape == (1, 4, 0)
