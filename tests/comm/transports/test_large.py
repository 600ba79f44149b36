"""Messages and sums of more than 2 GiB, where counts no longer fit an int."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.testing import workers

ROWS = (1 << 31) // 4096 + 8


@pytest.mark.soak
@workers(2)
@pytest.mark.parametrize("shared", ["on", "off"])
def test_a_block_of_more_than_two_gibibytes_moves(shared):
    world = gridwise.world()
    transport = world.transport
    if shared == "off" and hasattr(transport, "_shared"):
        transport._shared = None
    P_x, P_y = (world.create_partition_inclusive([rank]).create_cartesian_topology_partition([1, 1]) for rank in (0, 1))
    x = torch.zeros(0)
    if world.rank == 0:
        x = torch.arange(ROWS, dtype=torch.int32)[:, None].expand(ROWS, 1024).contiguous()
    y = nn.Repartition(P_x, P_y)(x)
    if world.rank == 1:
        assert y.nbytes > 1 << 31
        for row in (0, ROWS // 2, ROWS - 1):
            assert bool((y[row] == row).all())


@pytest.mark.soak
@workers(2)
def test_a_sum_of_more_than_two_gibibytes():
    world = gridwise.world()
    x = torch.full((ROWS * 1024 // 2 * 2,), float(world.rank + 1))
    y = nn.AllSumReduce(world, (0,))(x)
    assert y.nbytes > 1 << 31
    assert float(y[0]) == float(y[-1]) == 3.0
