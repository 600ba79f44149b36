"""A deferred model on a grid: each worker makes only its blocks, and starts from the numbers of the sequential model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gridwise
from gridwise.deferred_init import deferred_init, is_deferred
from gridwise.testing import workers


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2)
    )


@workers(1, 2, 4)
@pytest.mark.parametrize("cut", ["channels", "space"])
def test_a_distributed_deferred_model_has_the_numbers_of_an_eager_one(cut):
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition(
        [1, world.size, 1, 1] if cut == "channels" else [1, 1, 1, world.size]
    )
    torch.manual_seed(3)
    eager = network()
    torch.manual_seed(3)
    deferred = deferred_init(network)
    model, expected = gridwise.distribute(deferred, P_x), gridwise.distribute(eager, P_x)
    values = model.state_dict()
    for name, value in expected.state_dict().items():
        assert torch.equal(values[name], value), name
    assert not is_deferred(deferred), "it has the same parameters"
    x = torch.randn(2, 3, 6, 24)[gridwise.local_slice(P_x, (2, 3, 6, 24))]
    assert torch.equal(model(x), expected(x))
