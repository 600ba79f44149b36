"""Partitions: values that cost nothing, the same on every worker, active on some."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import gridwise
from gridwise.errors import MismatchError, PartitionError
from gridwise.grid import Layout
from gridwise.testing import workers


@workers(1, 4)
def test_the_world_is_one_object_and_knows_where_it_is():
    world = gridwise.world()
    assert gridwise.world() is world
    assert world.active
    assert world.shape == (world.size,)
    assert world.index == (world.rank,)
    assert repr(world).startswith("<Partition")


@workers(4)
def test_workers_outside_get_an_inactive_partition_that_knows_the_shape():
    world = gridwise.world()
    P = world.create_partition_inclusive([2, 0]).create_cartesian_topology_partition([1, 2])
    assert P.shape == (1, 2)
    assert P.size == 2
    assert P.dim == 2
    assert P.active == (world.rank in (0, 2))
    assert P.rank == {2: 0, 0: 1}.get(world.rank, -1)
    assert P.index == {2: (0, 0), 0: (0, 1)}.get(world.rank)
    assert "inactive" in repr(P) or P.active


@workers(4)
def test_a_grid_of_the_world_is_made_from_its_extents():
    P = gridwise.world().grid(1, 1, 2, 2)
    assert gridwise.world().create_cartesian_topology_partition([1, 1, 2, 2]) == P
    assert gridwise.world().create_partition_inclusive([2, 0]).grid(2).ranks == (2, 0)
    with pytest.raises(PartitionError, match="6 places, but there are 4 workers"):
        gridwise.world().grid(2, 3)


def test_what_was_the_grid_of_a_partition_is_named_in_the_error():
    P = gridwise.world().grid(1, 1)
    assert Layout.balanced(P.geometry, (4, 6)).block(P.transport.rank).shape == (4, 6)
    for make in (lambda: Layout.balanced(P.grid, (4, 6)), lambda: Layout(P.grid, ((0, 4), (0, 6)))):
        with pytest.raises(PartitionError, match=r"P_x\.geometry"):
            make()


@workers(4)
def test_unions_keep_the_order_and_inactive_partitions_can_make_others():
    world = gridwise.world()
    a, b = world.create_partition_inclusive([3, 1]), world.create_partition_inclusive([1, 0])
    assert a.create_partition_union(b).ranks == (3, 1, 0)
    assert a.create_partition_inclusive([1]).ranks == (1,)


@workers(4)
def test_subgrids_and_all_reduction_partitions_hold_my_slice():
    P = gridwise.world().create_cartesian_topology_partition([2, 2])
    rows = P.create_cartesian_subtopology_partition([False, True])
    assert rows.ranks == ((0, 1) if P.rank < 2 else (2, 3))
    assert rows.shape == (2,)
    columns = P.create_allreduction_partition([0])
    assert columns.ranks == ((0, 2) if P.rank % 2 == 0 else (1, 3))
    with pytest.raises(ValueError, match="axis 2"):
        P.create_allreduction_partition([2])


@workers(4)
def test_broadcast_and_reduction_partitions_put_the_root_first():
    world = gridwise.world()
    P_x = world.create_partition_inclusive([1, 2]).create_cartesian_topology_partition([1, 2])
    P_y = world.create_cartesian_topology_partition([2, 2])
    send, receive = P_x.create_broadcast_partition_to(P_y)
    assert receive.ranks == ((1, 0, 2) if world.rank in (0, 2) else (2, 1, 3))
    assert send.active == (world.rank in (1, 2))
    if world.rank == 1:
        assert send.ranks == (1, 0, 2)
    back_send, back_receive = P_y.create_reduction_partition_to(P_x)
    assert back_send == receive
    assert back_receive == send
    with pytest.raises(PartitionError, match="cannot be copied"):
        P_y.create_broadcast_partition_to(world.create_cartesian_topology_partition([4, 1]))


@workers(1, 3)
def test_small_data_between_workers():
    world = gridwise.world()
    n, r = world.size, world.rank
    assert np.array_equal(world.broadcast_data(np.array([[r, 2.5]]), root=n - 1), [[n - 1, 2.5]])
    assert np.array_equal(world.broadcast_data(np.array([True, False])), [True, False])
    assert np.array_equal(world.allgather_data([r, 10 * r]), [[i, 10 * i] for i in range(n)])
    assert world.allreduce_data(np.array([r + 1.0]))[0] == n * (n + 1) / 2
    assert world.allreduce_data(np.array([r]), op="max")[0] == n - 1
    assert world.allreduce_data(np.array([r]), op="min")[0] == 0
    assert world.allreduce_data(np.array([2]), op="prod")[0] == 2**n
    with pytest.raises(ValueError, match="op"):
        world.allreduce_data(np.array([2]), op="mean")
    inactive = world.create_partition_inclusive([0])
    if not inactive.active:
        assert inactive.broadcast_data(np.ones(1)) is None
        assert inactive.allgather_data([1]) is None
        assert inactive.allreduce_data(np.ones(1)) is None


@workers(3)
def test_data_of_different_lengths_is_refused_by_all():
    world = gridwise.world()
    with pytest.raises(PartitionError, match="worker 2: 2 numbers"):
        world.allgather_data([1, 2] if world.rank == 2 else [1])


@workers(3)
def test_broadcasting_from_a_worker_of_another_partition():
    world = gridwise.world()
    data = world.create_partition_inclusive([2])
    assert world.broadcast_data([world.rank], root=0, P_data=data)[0] == 2
    with pytest.raises(ValueError, match="root"):
        world.create_partition_inclusive([0, 1]).broadcast_data([1], root=0, P_data=data)


@workers(2)
def test_broadcasting_from_different_workers_is_refused_by_all():
    world = gridwise.world()
    for root in (world.rank, 1 - world.rank):
        with pytest.raises(MismatchError, match="from worker 1"):
            world.broadcast_data([world.rank], root=root)


@workers(4)
def test_neighbours_and_coordinates():
    P = gridwise.world().create_cartesian_topology_partition([2, 2])
    assert P.cartesian_index(3) == (1, 1)
    assert P.neighbor_ranks(0) == [(-1, 2), (-1, 1)]
    assert P.neighbor_ranks(3) == [(1, -1), (2, -1)]


@workers(2)
def test_partitions_are_equal_by_value_and_deactivate_for_good():
    world = gridwise.world()
    a, b = (world.create_cartesian_topology_partition([1, 2]) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != world.create_cartesian_topology_partition([2, 1])
    assert a != world
    world.deactivate()
    assert gridwise.world().active
    b.deactivate()
    assert not b.active
    assert b.rank == -1
    assert b.shape == (1, 2)


@workers(2)
def test_a_partition_stays_the_same_key_when_it_is_deactivated() -> None:
    world = gridwise.world()
    a, b = (world.create_cartesian_topology_partition([1, 2]) for _ in range(2))
    known = {a: "this"}
    a.deactivate()
    assert (a == b, known[a], known[b]) == (True, "this", "this")
    first, second = world.create_partition_inclusive([0]), world.create_partition_inclusive([1])
    _, received = first.create_broadcast_partition_to(second)
    assert received.active == (world.rank == 1)
    assert received != first  # on worker 0, which receives nothing, it only has the shape of that one


@workers(2)
def test_ten_thousand_partitions_leave_nothing_behind():
    world = gridwise.world()
    transport = world.transport
    layer = gridwise.nn.AllSumReduce(world, (0,))
    layer(torch.ones(1))
    groups = len(getattr(transport, "_groups", getattr(transport, "_comms", ())))
    for _ in range(10_000):
        P = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition([1, 2])
        P.create_allreduction_partition([1]).deactivate()
        P.deactivate()
    for _ in range(200):
        P = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition([1, 2])
        assert P.allreduce_data(np.ones(1))[0] == 2
        P.deactivate()
    assert len(getattr(transport, "_groups", getattr(transport, "_comms", ()))) == groups


def test_mistakes_are_explained():
    world = gridwise.world()
    with pytest.raises(PartitionError, match="no worker 5"):
        world.create_partition_inclusive([5])
    with pytest.raises(PartitionError, match="2 places"):
        world.create_cartesian_topology_partition([1, 2])
    with pytest.raises(PartitionError, match="comm"):
        gridwise.world("a string")
    P = world.create_cartesian_topology_partition((1.0,))
    for rank in (-1, 1):
        with pytest.raises(PartitionError, match="no worker of"):
            P.neighbor_ranks(rank)


@pytest.mark.parametrize("given", [[1.5], [0.7], ["0"], [None], 1])
def test_what_is_no_whole_number_is_refused(given):
    world = gridwise.world()
    for make in (
        world.create_partition_inclusive,
        world.create_cartesian_topology_partition,
        lambda given: gridwise.local_slice(world, given),
        lambda given: gridwise.nn.HaloExchange(world, [given]),
    ):
        with pytest.raises(PartitionError, match="whole numbers"):
            make(given)


def test_a_deep_copy_is_the_same_partition_and_pickling_is_refused():
    world = gridwise.world()
    assert copy.deepcopy(world) is world
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(world)
    grid = world.create_cartesian_topology_partition([1, 1])
    for made in (gridwise.nn.DistributedLinear(grid, 1, 1), gridwise.distribute(torch.nn.Linear(1, 1), grid)):
        with pytest.raises(TypeError, match="fix: save state_dict"):
            pickle.dumps(made)


@workers(3)
def test_local_slices_tile_the_tensor():
    P = gridwise.world().create_partition_inclusive([0, 1]).create_cartesian_topology_partition([2, 1])
    expected = {0: (slice(0, 3), slice(0, 4)), 1: (slice(3, 5), slice(0, 4))}
    assert gridwise.local_slice(P, (5, 4)) == expected.get(P.rank, (slice(0, 0), slice(0, 0)))


def test_zero_volume_tensors():
    assert gridwise.zero_volume_tensor().shape == (0,)
    assert gridwise.zero_volume_tensor(3).shape == (3, 0)
    x = gridwise.zero_volume_tensor(dtype=torch.float64, requires_grad=True)
    assert x.dtype == torch.float64
    assert x.requires_grad


@workers(4)
def test_a_communicator_of_the_users_own_can_be_the_world():
    world = gridwise.world()
    half = world.rank // 2
    if world.transport.name == "mpi":
        comm = world.transport._world.Split(color=half)
    else:
        comm = world.transport.group_of((2 * half, 2 * half + 1))
    mine = gridwise.world(comm)
    assert gridwise.world(comm) is mine
    assert (mine.size, mine.rank) == (2, world.rank % 2)
    total = gridwise.nn.AllSumReduce(mine, (0,))(torch.tensor([float(world.rank)]))
    assert float(total) == (1.0 if half == 0 else 5.0)
    mine.transport.close()


@workers(3)
def test_data_that_cannot_be_sent_is_refused_by_all():
    world = gridwise.world()
    with pytest.raises(PartitionError, match=r"worker 0: .*Python objects"):
        world.broadcast_data(object())
    with pytest.raises(PartitionError, match=r"worker 1: .*integers, got an array of float64"):
        world.allgather_data([0.5] if world.rank == 1 else [1])
    with pytest.raises(gridwise.errors.MismatchError, match="worker 2: allgather_data"):
        world.allgather_data([1]) if world.rank == 2 else world.allreduce_data(np.ones(1))


@workers(4, transports=("mpi",))
def test_the_handle_of_a_freed_communicator_does_not_bring_its_world_back():
    world = gridwise.world()
    comm = world.transport._world.Split(color=world.rank // 2)
    assert gridwise.world(comm).size == 2
    comm.Free()
    other = world.transport._world.Dup()
    assert gridwise.world(other).size == 4


@workers(1, 2)
def test_a_grid_of_more_places_than_workers_says_how_to_start_them():
    world = gridwise.world()
    with pytest.raises(PartitionError, match=r"4 places, but there (is 1 worker|are 2 workers)") as caught:
        world.create_cartesian_topology_partition([1, 1, 2, 2])
    assert "gridwise run -n 4 script.py" in str(caught.value)
    assert "gridwise.launch(function, workers=4)" in str(caught.value)
