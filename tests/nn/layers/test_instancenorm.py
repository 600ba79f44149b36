"""Instance norm equals torch's over any cut dims: training, evaluation, running statistics, without a batch."""

from __future__ import annotations

import itertools
import random
import warnings
from typing import Any

import pytest
import torch

import gridwise
from gridwise.grid import Layout
from gridwise.testing import check_equal_to_sequential, check_gradients, workers

nn = gridwise.nn


def grids(workers: int, dim: int) -> list[tuple[int, ...]]:
    choices = [p for p in range(1, workers + 1) if workers % p == 0]
    return [shape for shape in itertools.product(choices, repeat=dim) if torch.Size(shape).numel() == workers]


def pair(P_x: Any, space: int, channels: int, **options: Any) -> tuple[Any, Any]:
    """The layer on the grid and torch's, with the same weights and statistics that are not all 1 and 0."""
    sequential = getattr(torch.nn, f"InstanceNorm{space}d")(
        channels, dtype=torch.float64, **{k: v for k, v in options.items() if k != "bias"}
    )
    if not options.get("bias", True):
        sequential.register_parameter("bias", None)
    for value in sequential.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5)
    layer = getattr(nn, f"DistributedInstanceNorm{space}d")(P_x, channels, dtype=torch.float64, **options)
    layer.load_state_dict(sequential.state_dict())
    return layer, sequential


def run_case(
    shape: tuple[int, ...], grid: tuple[int, ...], options: dict[str, Any], seed: int, cuts: Any = None
) -> None:
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    layer, sequential = pair(P_x, len(shape) - 2, shape[1], **options)
    layout = Layout(P_x.geometry, cuts) if cuts else None
    for mode in (True, True, False):
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3 + 2
        for network in (layer.train(mode), sequential.train(mode)):
            network.zero_grad()
        check_equal_to_sequential(layer, sequential, x, P_x, layout=layout)
        for name, expected in sequential.named_buffers():
            actual = getattr(layer, name)
            block = getattr(actual, "block", None)
            torch.testing.assert_close(actual.as_subclass(torch.Tensor), expected[block.slices] if block else expected)
        seed += 1


OPTIONS = [
    {},
    {"affine": True, "eps": 1e-3},
    {"track_running_stats": True, "momentum": 0.3},
    {"affine": True, "track_running_stats": True, "momentum": None},
    {"affine": True, "track_running_stats": True, "bias": False},
]


@workers(1, 2, 3, 4)
def test_every_grid_and_option(gridwise_setting: tuple[str, int]) -> None:
    for shape in ((3, 5, 4), (2, 3, 4, 3)):
        for grid in grids(gridwise.world().size, len(shape)):
            for options in OPTIONS if gridwise_setting[0] == "mpi" else OPTIONS[3:4]:
                run_case(shape, grid, options, seed=len(shape))


def random_case(rng: random.Random, workers: int) -> None:
    shape = (rng.randint(1, 4), rng.randint(1, 5), *(rng.randint(1, 5) for _ in range(rng.randint(1, 3))))
    if torch.Size(shape[2:]).numel() < 2:
        shape = (*shape[:2], 2, *shape[3:])
    grid, options = rng.choice(grids(workers, len(shape))), rng.choice(OPTIONS)
    cuts = tuple(
        gridwise.grid.balanced_cuts(n, p)
        if d == 1 and options
        else (0, *sorted(rng.randint(0, n) for _ in range(p - 1)), n)
        for d, (n, p) in enumerate(zip(shape, grid, strict=True))
    )
    run_case(shape, grid, options, rng.randint(0, 99), cuts)


@workers(2, 3, 4, transports=("mpi",))
def test_random_configurations() -> None:
    for seed in range(12):
        random_case(random.Random(seed), gridwise.world().size)


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
def test_many_random_configurations() -> None:
    for seed in range(1000, 1200):
        random_case(random.Random(seed), gridwise.world().size)


@workers(1, 2)
@pytest.mark.parametrize("grid", [(1, 2), (1, 1, 2)])
def test_without_a_batch(grid: tuple[int, ...]) -> None:
    size = gridwise.world().size
    P_x = gridwise.world().create_cartesian_topology_partition((*grid[:-1], size))
    layer, sequential = pair(P_x, 1, 3, affine=True, track_running_stats=True)
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mine = gridwise.local_slice(P_x, (1,) * (len(grid) - 2) + (3, 5))[-2:]
    for mode in (True, False):
        for network in (layer.train(mode), sequential.train(mode)):
            network.zero_grad()
        whole, part = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
        expected, actual = sequential(whole), layer(part)
        torch.testing.assert_close(actual, expected[mine])
        (expected * x).sum().backward()
        (actual * x[mine]).sum().backward()
        torch.testing.assert_close(part.grad, whole.grad[mine])
        torch.testing.assert_close(layer.weight.grad, sequential.weight.grad)
        torch.testing.assert_close(layer.running_var.as_subclass(torch.Tensor), sequential.running_var)


@workers(2)
def test_gradients_of_gradients_and_halves() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2])
    layer, sequential = pair(P_x, 1, 2, affine=True)
    check_gradients(lambda x: layer(x) ** 2, torch.randn(2, 2, 3, dtype=torch.float64))
    x = torch.randn(2, 2, 6).bfloat16()
    block = gridwise.local_slice(P_x, x.shape)
    y = layer.bfloat16()(x[block])
    torch.testing.assert_close(y, sequential.bfloat16()(x)[block], rtol=1e-2, atol=1e-2)
    far = torch.randn(1, 2, 64) + 3000.0  # E[x^2] - E[x]^2 would lose every digit here
    block = gridwise.local_slice(P_x, far.shape)
    expected = torch.nn.InstanceNorm1d(2)(far)[block]
    torch.testing.assert_close(nn.DistributedInstanceNorm1d(P_x, 2)(far[block]), expected, rtol=1e-3, atol=1e-3)


@workers(2)
def test_refusals_and_channels_that_do_not_count() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([1, 2, 1, 1])
    refused = gridwise.errors.PartitionError
    with pytest.raises(refused, match="needs a partition of 5 axes"):
        nn.DistributedInstanceNorm3d(world.create_cartesian_topology_partition([1, 2, 1]), 4)
    with pytest.raises(refused, match="needs an extent of 5 along dim 1 of the global input, got 4"):
        nn.DistributedInstanceNorm2d(P_x, 5, affine=True)(torch.ones(1, 2, 2, 2))
    with pytest.raises(refused, match="in blocks"):
        nn.DistributedInstanceNorm2d(P_x, 4, affine=True)(torch.ones(1, 3 - 2 * world.rank, 2, 2))
    with pytest.raises(refused, match="more than 1 spatial element"):
        nn.DistributedInstanceNorm2d(P_x, 4)(torch.ones(3, 2, 1, 1))
    with pytest.raises(refused, match="some workers have a batch dim"):
        nn.DistributedInstanceNorm2d(P_x, 4)(torch.ones(*(1,) * (1 - world.rank), 2, 2, 2))
    with pytest.raises(refused, match="floating-point"):
        nn.DistributedInstanceNorm2d(P_x, 4)(torch.ones(1, 2, 2, 2).long())
    assert nn.DistributedInstanceNorm2d(P_x, 4)(torch.ones(0, 2, 2, 2)).shape == (0, 2, 2, 2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        y = nn.DistributedInstanceNorm2d(P_x, 7)(torch.randn(1, 2, 2, 2))
    assert y.shape == (1, 2, 2, 2)
    assert "4 channels, not 7" in str(told[0].message)
