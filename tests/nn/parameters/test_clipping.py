"""Clipping by the global norm: replicas count once, blocks each, and all workers get torch's number."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import gridwise
from gridwise.testing import workers

nn = gridwise.nn


def models(P_x: gridwise.CartesianPartition) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A replicated layer (batch norm) and a split one (linear, by its outputs), beside torch's."""
    sequential = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5)).double()
    layers = nn.DistributedLinear(P_x, 6, 5), nn.DistributedBatchNorm(P_x, 5)
    model = torch.nn.Sequential(*layers).double()
    model.load_state_dict(sequential.state_dict())
    return model, sequential


@workers(1, 2, 3, 4)
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, "inf"])
def test_the_total_is_that_of_the_sequential_model(norm: float | str) -> None:
    world = gridwise.world()
    for grid in ([world.size, 1], [1, world.size]):
        P_x = world.create_cartesian_topology_partition(grid)
        model, sequential = models(P_x)
        x = torch.randn(8, 6, dtype=torch.float64)
        model(x[gridwise.local_slice(P_x, x.shape)]).square().sum().backward()
        sequential(x).square().sum().backward()
        expected = torch.nn.utils.clip_grad_norm_(sequential.parameters(), 0.5, norm)
        total = nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm)
        torch.testing.assert_close(total, expected)
        for mine, whole in zip(model.parameters(), sequential.parameters(), strict=True):
            expected_grad = whole.grad if mine.block is None else whole.grad[mine.block.slices]
            torch.testing.assert_close(mine.grad, expected_grad)


@workers(2)
def test_infinities_and_wrong_orders() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), math.inf if gridwise.world().rank == 0 else 1.0)
    with pytest.raises(RuntimeError, match="cannot be clipped"):
        nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)
    with pytest.raises(gridwise.errors.PartitionError, match="`norm_type`"):
        nn.utils.clip_grad_norm_([parameter], 1.0, norm_type=-1.0)


@workers(1, 2, 3, 4)
@pytest.mark.parametrize("norm", [1.0, 2.0, "inf"])
def test_torchs_own_clipping_is_right_too(norm: float | str) -> None:
    """What Lightning and Accelerate call."""
    world = gridwise.world()
    for grid in ([world.size, 1], [1, world.size]):
        P_x = world.create_cartesian_topology_partition(grid)
        model, sequential = models(P_x)
        model, sequential = (torch.nn.ModuleList([m, torch.nn.Linear(1, 3).double()]) for m in (model, sequential))
        sequential[1].load_state_dict(model[1].state_dict())  # beside the layers, whole on every worker
        x = torch.randn(8, 6, dtype=torch.float64)
        for m, part in ((model, x[gridwise.local_slice(P_x, x.shape)]), (sequential, x)):
            m[0](part).square().sum().backward()
            (3 * m[1](x[:, :1])).sum().backward()
        expected = torch.nn.utils.get_total_norm([p.grad for p in sequential.parameters()], norm)
        for read in (lambda p: p.grad, lambda p: p.grad.detach(), lambda p: p.grad.data):
            total = torch.nn.utils.get_total_norm([read(p) for p in model.parameters()], norm)
            torch.testing.assert_close(total, expected)
        torch.nn.utils.clip_grad_norm_(sequential.parameters(), 0.5, norm)
        torch.testing.assert_close(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm), expected)
        for mine, whole in zip(model.parameters(), sequential.parameters(), strict=True):
            block = getattr(mine, "block", None)
            torch.testing.assert_close(mine.grad, whole.grad if block is None else whole.grad[block.slices])


@workers(4)
def test_torchs_own_clipping_of_layers_on_other_workers() -> None:
    """Two workers have one layer and two the other, whole; a copy of a layer counts as a layer."""
    world = gridwise.world()
    first, second = (
        world.create_partition_inclusive(ranks).create_cartesian_topology_partition([2, 1])
        for ranks in ((0, 1), (2, 3))
    )
    layers = nn.DistributedLinear(first, 2, 2, bias=False), nn.DistributedLinear(second, 2, 2, bias=False)
    model = torch.nn.ModuleList([*layers, copy.deepcopy(layers[1])])
    for k, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 2.0 + k)
    expected = torch.tensor(math.sqrt(4 * (4 + 9 + 16)))
    torch.testing.assert_close(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9), expected)
    torch.testing.assert_close(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), expected)
    total = torch.nn.utils.clip_grad_norm_(list(model[0].parameters()), 1e9)  # of the workers that have it
    if first.active:
        torch.testing.assert_close(total, torch.tensor(4 / expected.item()))


@workers(2)
def test_torchs_own_clipping_refuses_what_has_no_meaning() -> None:
    layer = nn.DistributedLinear(gridwise.world().create_cartesian_topology_partition([1, 2]), 4, 4)
    layer.weight.grad = torch.full_like(layer.weight, math.nan if gridwise.world().rank else 1.0)
    with pytest.raises(RuntimeError, match="cannot be clipped"):
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)
    with pytest.raises(gridwise.errors.PartitionError, match="`norm_type`"):
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, norm_type=0.0)


@workers(2)
def test_a_worker_that_computes_a_norm_alone_is_named() -> None:
    """To log it, say, while the other clips: it must not be taken for one that clips too."""
    layer = nn.DistributedLinear(gridwise.world().create_cartesian_topology_partition([1, 2]), 4, 4)
    layer(torch.ones(1, 2)).sum().backward()
    norm, clip = torch.nn.utils.get_total_norm, torch.nn.utils.clip_grad_norm_
    for other in (lambda: clip(layer.parameters(), 1.0), lambda: nn.utils.clip_grad_norm_(layer.parameters(), 1.0)):
        alone = lambda: norm([p.grad for p in layer.parameters()])  # noqa: E731
        with pytest.raises(gridwise.errors.MismatchError, match=r"worker 0: called torch.nn.utils.get_total_norm"):
            (other if gridwise.world().rank else alone)()
    torch.testing.assert_close(norm([p.grad for p in layer.parameters()]), clip(layer.parameters(), 1.0))


@workers(2)
def test_torchs_own_clipping_of_replicas_sends_nothing() -> None:
    world = gridwise.world()
    layer = nn.DistributedLinear(world.create_cartesian_topology_partition([2, 1]), 4, 4)
    layer(torch.ones(1, 4)).sum().backward()
    if world.rank == 0:  # alone: a message would wait for the other worker
        total = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        torch.testing.assert_close(
            total, torch.tensor(math.sqrt(4 * 4 * 4 + 4 * 4))
        )  # gradients of 2 in 16 weights, 4 biases
