"""Only some workers change something: all plan anew together, or all raise the same error. Never a hang, never a stale plan."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.errors import GridwiseError, MismatchError, PartitionError
from gridwise.grid import Layout
from gridwise.testing import workers


def row() -> gridwise.CartesianPartition:
    world = gridwise.world()
    return world.create_cartesian_topology_partition([1, world.size])


def raised_everywhere(kind: type[Exception], call, *args) -> str:
    """Run `call`, which must fail in the same words on every worker; return them."""
    world = gridwise.world()
    try:
        call(*args)
    except kind as error:
        text = str(error)
    else:
        text = "no error"
    told = world.transport.gather_bytes(text.encode(), world.team)
    assert set(told) == {text.encode()}, told
    assert text != "no error"
    return text


@workers(2, 3)
def test_a_size_that_changes_on_one_worker_only_makes_all_plan_anew():
    P_x, rank, size = row(), gridwise.world().rank, gridwise.world().size
    layer = nn.AllGather(P_x, axes=(1,))
    for last in (3, 5, 1, 0, 3):
        extent = last if rank == size - 1 else 2
        x = torch.full((2, extent), float(rank))
        expected = torch.cat([torch.full((2, last if r == size - 1 else 2), float(r)) for r in range(size)], 1)
        assert torch.equal(layer(x), expected)


@workers(2, 3)
def test_a_halo_moves_when_only_the_neighbours_block_grew():
    P_x, rank = row(), gridwise.world().rank
    layer = nn.HaloExchange(P_x, [(0, 0), (1, 1)])
    for first in (2, 4, 2):
        extents = [first] + [3] * (P_x.size - 1)
        start = sum(extents[:rank])
        full = torch.arange(float(sum(extents))).expand(2, -1)
        y = layer(full[:, start : start + extents[rank]])
        assert torch.equal(y, full[:, max(0, start - 1) : start + extents[rank] + 1])


@workers(2, 4)
def test_a_batch_that_changes_on_some_workers_is_refused_by_all():
    P_x, rank = row(), gridwise.world().rank
    layer = nn.HaloExchange(P_x, [(0, 0), (1, 1)])
    layer(torch.ones(2, 3))
    text = raised_everywhere(PartitionError, layer, torch.ones(2 + (rank == 1), 3))
    assert "worker 1: shape (3, 3)" in text
    neighbours = (rank > 0) + (rank < P_x.size - 1)
    assert torch.equal(layer(torch.ones(2, 3)), torch.ones(2, 3 + neighbours)), "and goes on with what fits"


@workers(2, 3)
def test_a_dtype_that_changes_on_one_worker_is_refused_by_all():
    P_x, rank = row(), gridwise.world().rank
    for layer in (nn.AllSumReduce(P_x, (1,)), nn.AllGather(P_x, (1,)), nn.HaloExchange(P_x, [(0, 0), (1, 1)])):
        layer(torch.ones(1, 2))
        x = torch.ones(1, 2, dtype=torch.int32 if rank == 1 else torch.float32)
        text = raised_everywhere(PartitionError, layer, x)
        assert "one dtype" in text
        assert "int32" in text
        layer(torch.ones(1, 2))


@workers(2, 3)
def test_requires_grad_on_one_worker_makes_all_enter_backward():
    P_x, rank = row(), gridwise.world().rank
    layer = nn.AllSumReduce(P_x, (1,))
    assert not layer(torch.ones(1, 2)).requires_grad
    x = torch.ones(1, 2, requires_grad=rank == 1)
    y = layer(x)
    assert y.requires_grad
    (y * (rank + 1)).sum().backward()
    if rank == 1:
        assert torch.equal(x.grad, torch.full((1, 2), float(sum(range(P_x.size + 1)))))
    else:
        assert x.grad is None
    assert not layer(torch.ones(1, 2)).requires_grad


@workers(2, 3)
def test_no_grad_on_one_worker_only_is_refused_by_all():
    P_x, rank = row(), gridwise.world().rank
    layer = nn.AllSumReduce(P_x, (1,))
    with torch.set_grad_enabled(rank != 0):
        text = raised_everywhere(PartitionError, layer, torch.ones(1, 2, requires_grad=True))
    assert "autograd is off" in text


@workers(2, 3)
@pytest.mark.parametrize("call", ["barrier", "broadcast_data", "print_sequential"])
def test_who_makes_another_call_than_a_layers_is_named(call):
    world = gridwise.world()
    layer = nn.AllSumReduce(world, (0,))
    others = {
        "barrier": lambda _: world.barrier(),
        "broadcast_data": world.broadcast_data,
        "print_sequential": world.print_sequential,
    }
    text = raised_everywhere(MismatchError, others[call] if world.rank == 0 else layer, torch.ones(1))
    assert f"worker 0: called {call}" in text
    assert layer(torch.ones(1)) == world.size


@workers(2)
def test_tensors_without_numbers_are_refused_by_all():
    for layer in (nn.AllSumReduce(row(), (1,)), nn.HaloExchange(row(), ((0, 0), (1, 1)))):
        assert "no numbers" in raised_everywhere(PartitionError, layer, torch.ones(1, 2, device="meta"))


@workers(2, 3)
def test_shapes_that_cannot_be_summed_are_refused_by_all():
    P_x, rank = row(), gridwise.world().rank
    text = raised_everywhere(PartitionError, nn.AllSumReduce(P_x, (1,)), torch.ones((2, 3) if rank == 0 else (3, 2)))
    assert "one shape" in text
    assert "worker 0: shape (2, 3)" in text


@workers(2, 4)
def test_a_tensor_with_the_wrong_number_of_dims_on_one_worker_is_refused_by_all():
    P_x, rank = row(), gridwise.world().rank
    text = raised_everywhere(PartitionError, nn.AllGather(P_x, (1,)), torch.ones((2, 3, 1) if rank == 1 else (2, 3)))
    assert "2 dims" in text


@workers(2, 3)
@pytest.mark.parametrize("bad", ["not a tensor", "sparse", "dtype"])
def test_a_bad_input_on_one_worker_is_refused_by_all(bad):
    P_x, rank = row(), gridwise.world().rank
    x = torch.ones(2, 3)
    if rank == 1:
        x = {"not a tensor": [1.0], "sparse": x.to_sparse(), "dtype": x.to(torch.float8_e5m2)}[bad]
    text = raised_everywhere(PartitionError, nn.AllSumReduce(P_x, (1,)), x)
    assert "worker 1" in text


@workers(2, 3)
def test_two_equal_layers_called_in_another_order_are_told_apart():
    P_x, rank = row(), gridwise.world().rank
    first, second = nn.AllSumReduce(P_x, (1,)), nn.AllSumReduce(P_x, (1,))
    text = raised_everywhere(MismatchError, first if rank == 0 else second, torch.ones(1, 2))
    assert "worker 0: called AllSumReduce" in text
    assert "direction A of those with this name" in text
    assert "direction B of those with this name" in text


@workers(2, 3)
def test_different_operators_are_named():
    P_x, rank = row(), gridwise.world().rank
    layers = nn.AllSumReduce(P_x, (1,)), nn.AllGather(P_x, (1,))
    text = raised_everywhere(MismatchError, layers[rank == 1], torch.ones(1, 2))
    assert "AllSumReduce" in text
    assert "AllGather" in text


@workers(2, 3)
def test_backward_in_another_order_is_refused_by_all():
    P_x, rank = row(), gridwise.world().rank
    layer = nn.AllSumReduce(P_x, (1,))
    x = torch.ones(1, 2, requires_grad=True)
    one, two = layer(x), layer(2 * x)
    raised_everywhere(MismatchError, lambda: (one if rank == 0 else two).sum().backward())


@workers(2)
def test_without_the_agreement_the_results_are_the_same():
    P_x = row()
    layer, x = nn.HaloExchange(P_x, [(0, 0), (1, 1)]), torch.rand(2, 3, requires_grad=True)
    y = layer(x)
    with gridwise.agreement(False):
        z = layer(x)
        z.sum().backward()
    assert torch.equal(y, z)


@workers(2, 3)
def test_random_changes_on_random_workers_are_right_or_refused():
    """Fifty steps in which each worker may change its extent, dtype or requires_grad: right, or one error on all."""
    P_x, rank, size = row(), gridwise.world().rank, gridwise.world().size
    layer = nn.AllGather(P_x, axes=(1,))
    generator = torch.Generator().manual_seed(5)
    for _ in range(50):
        extents = torch.randint(0, 4, (size,), generator=generator).tolist()
        batch = (2 + (torch.rand(size, generator=generator) < 0.1)).tolist()
        double = (torch.rand(size, generator=generator) < 0.1).tolist()
        grad = (torch.rand(size, generator=generator) < 0.3).tolist()
        dtype = torch.float64 if double[rank] else torch.float32
        x = torch.full((batch[rank], extents[rank]), float(rank), dtype=dtype, requires_grad=grad[rank])
        if len(set(batch)) > 1 or len(set(double)) > 1:
            raised_everywhere(GridwiseError, layer, x)
            continue
        y = layer(x)
        parts = [torch.full((batch[r], extents[r]), float(r), dtype=dtype) for r in range(size)]
        assert torch.equal(y, torch.cat(parts, 1))
        assert y.requires_grad == any(grad)
        if any(grad):
            y.sum().backward()
            assert x.grad is None or torch.equal(x.grad, torch.full_like(x, float(size)))


@workers(4)
def test_blocks_that_form_no_grid_are_refused_with_what_each_worker_has():
    P_x = gridwise.world().create_cartesian_topology_partition([2, 2])
    shape = list(Layout.balanced(P_x.geometry, (5, 6)).block(P_x.rank).shape)
    shape[0] += P_x.rank == 3
    text = raised_everywhere(PartitionError, nn.Repartition(P_x, P_x), torch.ones(shape))
    assert "worker 3: shape (3, 3), float32 at (1, 1)" in text.replace(" on cuda:0", "")


@workers(2, 3)
def test_after_a_mismatch_was_caught_right_calls_work_again():
    P_x, rank = row(), gridwise.world().rank
    first, second = nn.AllSumReduce(P_x, (1,)), nn.AllSumReduce(P_x, (1,))
    raised_everywhere(MismatchError, first if rank == 0 else second, torch.ones(1, 2))
    for layer in (first, second, first):
        assert torch.equal(layer(torch.ones(1, 2)), torch.full((1, 2), float(P_x.size)))


@workers(2)
def test_partitions_in_the_order_of_distdl_are_refused_with_the_right_call():
    world = gridwise.world()
    P_x, P_w = row(), world.create_cartesian_topology_partition([2, 1])
    text = raised_everywhere(PartitionError, nn.DistributedLinear, P_x, P_x, P_w, 6, 8)
    assert "`in_features` and `out_features` are partitions" in text
    assert "fix: DistributedLinear(P_x, in_features, out_features, P_y=P_y, P_w=P_w)" in text
    P_x = world.create_cartesian_topology_partition([1, 2, 1, 1])
    text = raised_everywhere(PartitionError, nn.DistributedChannelConv2d, P_x, P_x, P_x, 4, 6, 3)
    assert "`in_channels` and `out_channels` are partitions" in text
    assert "P_y=P_y, P_w=P_w" in text


@workers(2)
@pytest.mark.parametrize("given", ["a list", "the world"])
def test_what_is_no_grid_is_refused_with_the_way_to_one(given):
    P_x = [1, 1, 2, 1] if given == "a list" else gridwise.world()
    text = raised_everywhere(PartitionError, nn.DistributedConv2d, P_x, 1, 1, 3)
    assert "fix: P_x = gridwise.world().grid(" in text
    if given == "a list":
        for layer, *arguments in ((nn.DistributedLinear, 2, 2), (nn.HaloExchange, [(0, 0)]), (nn.Repartition, P_x)):
            text = raised_everywhere(PartitionError, layer, P_x, *arguments)
            assert "gridwise.world().grid(" in text


@workers(2)
def test_shapes_of_halos_that_distdl_hands_over_are_refused():
    P_x = row()
    text = raised_everywhere(PartitionError, nn.HaloExchange, P_x, [(0, 0), (1, 1)], [(0, 0), (1, 1)], [(0, 0), (1, 1)])
    assert "fix: HaloExchange(P_x, halo_shape)(block)" in text
