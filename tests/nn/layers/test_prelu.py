"""PReLU equals torch's, with one slope or one for each channel, on any grid."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.testing import check_equal_to_sequential, check_gradients, workers

nn = gridwise.nn


@workers(1, 2, 4)
def test_equal_to_torch(gridwise_setting: tuple[str, int]) -> None:
    grids = {1: [(1, 1, 1)], 2: [(1, 2, 1), (1, 1, 2), (2, 1, 1)], 4: [(1, 2, 2), (4, 1, 1), (1, 4, 1)]}
    for grid in grids[gridwise_setting[1]]:
        P_x = gridwise.world().create_cartesian_topology_partition(grid)
        for parameters in (1, 3):
            sequential = torch.nn.PReLU(parameters, dtype=torch.float64)
            sequential.weight.data.copy_(torch.rand(parameters, generator=torch.Generator().manual_seed(0)))
            layer = nn.DistributedPReLU(P_x, parameters, dtype=torch.float64)
            layer.load_state_dict(sequential.state_dict())
            x = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            check_equal_to_sequential(layer, sequential, x, P_x)


@workers(2)
def test_second_order_and_refusals() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 2])
    layer = nn.DistributedPReLU(P_x, 4, dtype=torch.float64)
    check_gradients(lambda x: layer(x) ** 2, torch.randn(3, 2, dtype=torch.float64))
    with pytest.raises(gridwise.errors.PartitionError, match="needs an extent of 4 along dim 1"):
        layer(torch.ones(1, 3, dtype=torch.float64))
    with pytest.raises(gridwise.errors.PartitionError, match="at least 2 axes"):
        nn.DistributedPReLU(gridwise.world(), 2)
