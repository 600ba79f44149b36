"""Batch norm equals torch's: output, gradients, running statistics, over batch, channel and space."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch

import gridwise
from gridwise.grid import Layout
from gridwise.testing import check_equal_to_sequential, check_gradients, workers

nn = gridwise.nn
TORCH = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
NAMED = {3: nn.DistributedBatchNorm1d, 4: nn.DistributedBatchNorm2d, 5: nn.DistributedBatchNorm3d}


def grids(workers: int, dim: int) -> list[tuple[int, ...]]:
    choices = [p for p in range(1, workers + 1) if workers % p == 0]
    return [shape for shape in itertools.product(choices, repeat=dim) if torch.Size(shape).numel() == workers]


def pair(P_x: Any, channels: int, **options: Any) -> tuple[Any, Any]:
    """The layer on the grid and torch's, with the same weights and statistics that are not all 1 and 0."""
    sequential = TORCH[P_x.dim](channels, dtype=torch.float64, **{k: v for k, v in options.items() if k != "bias"})
    if not options.get("bias", True):
        sequential.register_parameter("bias", None)
    for value in sequential.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5)
    layer = nn.DistributedBatchNorm(P_x, channels, dtype=torch.float64, **options)
    layer.load_state_dict(sequential.state_dict())
    return layer, sequential


def check_buffers(layer: Any, sequential: Any) -> None:
    for name, expected in sequential.named_buffers():
        actual = getattr(layer, name)
        block = getattr(actual, "block", None)
        torch.testing.assert_close(actual.as_subclass(torch.Tensor), expected[block.slices] if block else expected)


def run_case(
    shape: tuple[int, ...], grid: tuple[int, ...], options: dict[str, Any], seed: int, cuts: Any = None
) -> None:
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    layer, sequential = pair(P_x, shape[1], **options)
    layout = Layout(P_x.geometry, cuts) if cuts else None
    for step in range(2):
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + step)) * 3 + 2
        layer.zero_grad()
        sequential.zero_grad()
        check_equal_to_sequential(layer, sequential, x, P_x, layout=layout)
        check_buffers(layer, sequential)
    layer.eval()
    sequential.eval()
    layer.zero_grad()
    sequential.zero_grad()
    check_equal_to_sequential(layer, sequential, x, P_x, layout=layout)
    check_buffers(layer, sequential)


OPTIONS = [
    {},
    {"momentum": None, "eps": 1e-3},
    {"affine": False, "momentum": 0.3},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
    {"bias": False},
]


@workers(1, 2, 3, 4)
def test_every_grid_and_option(gridwise_setting: tuple[str, int]) -> None:
    for shape in ((6, 5), (3, 5, 4), (2, 3, 4, 3)):
        for grid in grids(gridwise.world().size, len(shape)):
            for options in OPTIONS if gridwise_setting[0] == "mpi" else OPTIONS[:1]:
                run_case(shape, grid, options, seed=len(shape))


@workers(4, transports=("mpi",))
def test_uneven_and_empty_blocks() -> None:
    run_case((5, 3, 4), (2, 1, 2), {}, 0, cuts=((0, 1, 5), (0, 3), (0, 0, 4)))
    run_case((2, 2, 2), (4, 1, 1), {}, 1)
    run_case((3, 2, 2), (1, 4, 1), {}, 2)
    run_case((2, 3, 5, 2, 2), (1, 1, 2, 1, 2), {}, 3)


def random_case(rng: random.Random, workers: int) -> None:
    shape = (rng.randint(1, 5), rng.randint(1, 5), *(rng.randint(1, 5) for _ in range(rng.randint(0, 2))))
    if shape[0] * torch.Size(shape[2:]).numel() < 2:
        shape = (2, *shape[1:])
    grid = rng.choice(grids(workers, len(shape)))
    cuts = tuple(
        Layout.balanced(gridwise.grid.Grid(tuple(range(p)), (p,)), (n,)).cuts[0]
        if d == 1
        else (0, *sorted(rng.randint(0, n) for _ in range(p - 1)), n)
        for d, (n, p) in enumerate(zip(shape, grid, strict=True))
    )
    run_case(shape, grid, rng.choice(OPTIONS), rng.randint(0, 99), cuts)


@workers(2, 3, 4, transports=("mpi",))
def test_random_configurations() -> None:
    for seed in range(12):
        random_case(random.Random(seed), gridwise.world().size)


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
def test_many_random_configurations() -> None:
    for seed in range(1000, 1300):
        random_case(random.Random(seed), gridwise.world().size)


@workers(1, 2)
def test_gradients_of_gradients() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size])
    layer, sequential = pair(P_x, 2)
    check_gradients(lambda x: layer(x) ** 2, torch.randn(2, 2, 3, dtype=torch.float64))
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    block = gridwise.local_slice(P_x, x.shape)
    results = []
    for network, part, loss in (
        (layer, x[block].clone(), nn.DistributedMSELoss(P_x, reduction="sum")),
        (sequential, x.clone(), torch.nn.MSELoss(reduction="sum")),
    ):
        part.requires_grad_()
        network.zero_grad()
        value = loss(network(part), part.detach() ** 2)
        gradients = torch.autograd.grad(value, [part, network.weight, network.bias], create_graph=True)
        penalty = nn.DistributedMSELoss(P_x, reduction="sum") if network is layer else torch.nn.MSELoss(reduction="sum")
        total = penalty(gradients[0], torch.zeros_like(gradients[0])) + gradients[1].square().sum() + gradients[2].sum()
        total.backward()
        results.append((*(g.detach() for g in gradients), part.grad, network.weight.grad, network.bias.grad))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected[block] if expected.dim() == 3 else expected)


@workers(4, transports=("gloo",))
def test_gradients_in_any_order_of_memory() -> None:
    """Torch's kernel takes such gradients for others if a block has but one sample or row."""
    for grid, shape in (((2, 1, 2, 1), (2, 6, 2, 3)), ((1, 1, 4, 1), (1, 6, 4, 2)), ((2, 2, 1, 1), (2, 4, 1, 3))):
        P_x = gridwise.world().create_cartesian_topology_partition(grid)
        layer, sequential = pair(P_x, shape[1])
        x, dy = torch.randn(2, *shape, dtype=torch.float64)
        whole = x.clone().requires_grad_()
        sequential(whole).backward(dy)
        for order in itertools.permutations(range(4)):
            layer.zero_grad()
            block = gridwise.scatter(x, P_x).requires_grad_()
            back = [order.index(d) for d in range(4)]
            layer(block).backward(gridwise.scatter(dy, P_x).permute(order).contiguous().permute(back))
            torch.testing.assert_close(block.grad, gridwise.scatter(whole.grad, P_x))
            if grid[1] == 1:
                torch.testing.assert_close(layer.weight.grad, sequential.weight.grad)
                torch.testing.assert_close(layer.bias.grad, sequential.bias.grad)


@workers(2)
def test_large_means_do_not_cancel() -> None:
    """E[x^2] - E[x]^2 would lose every digit here."""
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    layer, sequential = nn.DistributedBatchNorm2d(P_x, 3), torch.nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 16, 16) + 3000.0
    block = gridwise.local_slice(P_x, x.shape)
    torch.testing.assert_close(layer(x[block]), sequential(x)[block], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        layer.running_var.as_subclass(torch.Tensor), sequential.running_var, rtol=1e-4, atol=1e-4
    )


@workers(3)
def test_statistics_weights_and_half_precision() -> None:
    P_x = gridwise.world().create_partition_inclusive([1, 2]).create_cartesian_topology_partition([1, 2, 1])
    layer, sequential = pair(P_x, 5)
    check_equal_to_sequential(layer, sequential, torch.randn(3, 5, 4, dtype=torch.float64), P_x)
    twin = copy.deepcopy(layer)
    twin.load_state_dict(layer.state_dict())
    twin.load_state_dict(sequential.state_dict())
    y = layer.bfloat16()(torch.ones(3, 3 - (P_x.index or (0, 0))[1], 4, dtype=torch.bfloat16)) if P_x.active else None
    assert y is None or y.dtype == torch.bfloat16


@workers(2)
def test_refusals() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([1, 2, 1, 1])
    with pytest.raises(gridwise.errors.PartitionError, match="needs a partition of 5 axes"):
        nn.DistributedBatchNorm3d(P_x, 4)
    for kind in NAMED.values():
        assert issubclass(kind, nn.DistributedBatchNorm)
    with pytest.raises(
        gridwise.errors.PartitionError, match="needs an extent of 5 along dim 1 of the global input, got 4"
    ):
        nn.DistributedBatchNorm2d(P_x, 5)(torch.ones(1, 2, 2, 2))
    with pytest.raises(
        gridwise.errors.PartitionError, match=r"in blocks \(0, 2, 4\), the input is cut along dim 1 at \(0, 3, 4\)"
    ):
        nn.DistributedBatchNorm2d(P_x, 4)(torch.ones(1, 3 - 2 * world.rank, 2, 2))
    with pytest.raises(gridwise.errors.PartitionError, match="more than 1 value per channel"):
        nn.DistributedBatchNorm2d(P_x, 4)(torch.ones(1, 2, 1, 1))
    with pytest.raises(gridwise.errors.PartitionError, match="more than 1 value per channel"):  # of the batch, as ever
        nn.DistributedBatchNorm2d(P_x, 4, track_running_stats=False).eval()(torch.ones(1, 2, 1, 1))
