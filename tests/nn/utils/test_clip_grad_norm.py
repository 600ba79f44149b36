"""Clipping by the global norm: replicas count once, blocks each, and all workers get torch's number."""

from __future__ import annotations

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
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, math.inf])
def test_the_total_is_that_of_the_sequential_model(norm: float) -> None:
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
