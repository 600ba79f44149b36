"""Who takes part in backward: everybody, whatever each worker's own graph looks like."""

from __future__ import annotations

import torch

import gridwise
from gridwise import nn
from gridwise.testing import workers


def row() -> gridwise.CartesianPartition:
    world = gridwise.world()
    return world.create_cartesian_topology_partition([world.size])


@workers(2, 3)
def test_an_inactive_worker_joins_with_a_zero_volume_tensor_that_needs_no_gradient():
    """The seed's example passes `zero_volume_tensor()` without requires_grad."""
    world = gridwise.world()
    P_x = world.create_partition_inclusive([0]).create_cartesian_topology_partition([1])
    x = torch.ones(3, requires_grad=True) if P_x.active else gridwise.zero_volume_tensor()
    y = nn.Broadcast(P_x, row())(x)
    y.sum().backward()
    if P_x.active:
        assert torch.equal(x.grad, torch.full((3,), float(world.size)))


@workers(2, 3)
def test_an_output_that_only_one_worker_uses_counts_as_zeros_elsewhere():
    rank = gridwise.world().rank
    x = torch.ones(2, requires_grad=True)
    y = nn.AllSumReduce(row(), (0,))(x)
    (y.sum() if rank == 0 else 0.0 * y.sum()).backward()
    assert torch.equal(x.grad, torch.ones(2))


@workers(2, 3)
def test_two_branches_run_in_one_order():
    P = row()
    left, right = nn.AllSumReduce(P, (0,)), nn.HaloExchange(P, [(1, 1)])
    x = torch.ones(4, requires_grad=True)
    (left(x).sum() + right(x).sum()).backward()
    edges = (P.rank > 0) + (P.rank < P.size - 1)
    assert float(x.grad.sum()) == 4 * P.size + 4 + edges


@workers(2, 3)
def test_an_unused_second_output_does_no_harm():
    layer = nn.AllSumReduce(row(), (0,))
    x = torch.ones(2, requires_grad=True)
    used, _unused = layer(x), layer(3 * x)
    used.sum().backward()
    assert torch.equal(x.grad, torch.full((2,), float(gridwise.world().size)))


@workers(2, 3)
def test_the_gradient_of_a_subset():
    P = row()
    x, w = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    loss = (nn.AllSumReduce(P, (0,))(x * w) ** 2).sum()
    (dw,) = torch.autograd.grad(loss, [w])
    assert torch.equal(dw, torch.full((2,), 2 * 3.0 * P.size * P.size))


@workers(2, 3)
def test_backward_twice_with_retain_graph():
    x = torch.ones(2, requires_grad=True)
    y = nn.AllSumReduce(row(), (0,))(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0 * gridwise.world().size))


@workers(2, 3)
def test_an_inactive_worker_in_front_of_a_layer_with_weights():
    world = gridwise.world()
    P_0 = world.create_partition_inclusive([world.size - 1]).create_cartesian_topology_partition([1, 1])
    P_x = world.create_cartesian_topology_partition([world.size, 1])
    torch.manual_seed(0)
    linear = torch.nn.Linear(2, 2, bias=False)
    x = torch.ones(1, 2) if P_0.active else gridwise.zero_volume_tensor(1)
    hidden = linear(x) if P_0.active else x
    y = nn.Broadcast(P_0, P_x)(hidden)
    y.sum().backward()
    if P_0.active:
        assert torch.equal(linear.weight.grad, torch.full((2, 2), float(world.size)))


@workers(2)
def test_a_compiled_function_may_call_a_primitive():
    layer = nn.AllSumReduce(row(), (0,))

    @torch.compile(backend="eager")
    def step(x):
        return layer(x * 2) + 1

    assert torch.equal(step(torch.ones(3)), torch.full((3,), 2.0 * gridwise.world().size + 1))


@workers(2, 3)
def test_gradients_of_gradients_that_only_one_worker_uses():
    P, rank = row(), gridwise.world().rank
    x = torch.full((2,), 2.0, dtype=torch.float64, requires_grad=True)
    y = nn.AllSumReduce(P, (0,))(x**3 if rank == 0 else x * 0)
    (dx,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum() if rank == 0 else 0.0 * dx.sum(), x)
    if rank == 0:  # y = x^3, d/dx of P y^2 = 6 P x^5 with every worker's y^2 counted, then 30 P x^4
        assert torch.allclose(ddx, torch.full((2,), 30.0 * P.size * 2.0**4, dtype=torch.float64))
