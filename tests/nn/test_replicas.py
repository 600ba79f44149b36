"""Replicas that have parted are named; those that have not pass."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.testing import workers


@workers(1, 3)
def test_replicas_are_compared() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([world.size, 1])
    model = torch.nn.Sequential(gridwise.nn.DistributedLinear(P_x, 3, 4), gridwise.nn.DistributedBatchNorm(P_x, 4))
    gridwise.check_replicas(model)
    if world.size == 1:
        return
    with torch.no_grad():
        model[1].running_var[2] += float(world.rank == 2)
    with pytest.raises(
        gridwise.errors.PartitionError, match=r"workers 0, 1: 1\.running_var has .*\n.*worker 2: 1\.running_var"
    ):
        gridwise.check_replicas(model)


@workers(2)
def test_blocks_are_not_replicas() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 2])
    model = gridwise.nn.DistributedLinear(P_x, 3, 4)
    with torch.no_grad():
        model.weight += gridwise.world().rank
    gridwise.check_replicas(model)
    with pytest.raises(gridwise.errors.MismatchError, match="different names"):
        gridwise.check_replicas(torch.nn.Linear(2, 2, bias=gridwise.world().rank == 0))
