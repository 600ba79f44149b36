"""No primitive holds more than its input, its output and one packed copy of what it sends and receives."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gridwise
from gridwise import nn
from gridwise.testing import workers


class FreshMemory(TorchDispatchMode):
    """Adds up the bytes of all memory that operators make, freed again or not."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {
            x.untyped_storage().data_ptr()
            for x in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        for x in torch.utils._pytree.tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in known:
                self.nbytes += x.untyped_storage().nbytes()
        return result


@workers(2, 4)
@pytest.mark.parametrize("rows", [8, 1024], ids=["messages", "shared memory"])
def test_what_a_movement_allocates(rows):
    world = gridwise.world()
    n = world.size
    P_x, P_y = (world.create_cartesian_topology_partition(shape) for shape in ([n, 1], [1, n]))
    x = torch.ones(rows, 1024)
    for layer in (nn.Repartition(P_x, P_y), nn.HaloExchange(P_x, [(3, 3), (0, 0)]), nn.AllGather(P_x, (0,))):
        y = layer(x)
        plan = layer._operator.plan
        sent, received = (4 * sum(m.volume for m in ms) for ms in (plan.sends, plan.receives))
        with FreshMemory() as forward:
            layer._operator(x)
        assert forward.nbytes <= y.nbytes + sent + received
        with FreshMemory() as backward:
            layer._operator.adjoint(y)
        assert backward.nbytes <= x.nbytes + sent + received


@workers(2, 4)
def test_a_sum_allocates_its_result_only():
    layer = nn.AllSumReduce(gridwise.world(), (0,))
    for count in (100, 1 << 20):
        x = torch.ones(count)
        layer(x)
        with FreshMemory() as spent:
            layer._operator(x)
        assert spent.nbytes <= x.nbytes
