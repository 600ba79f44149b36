"""The counting transport: the real code of one worker among thousands, with nobody else there."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.comm.transports.counting import Ledger
from gridwise.errors import PartitionError
from gridwise.grid import Layout


def test_the_ledger_says_what_a_halo_exchange_would_send():
    ledger = Ledger(4096)
    rank = 64 * 10 + 10
    P = gridwise.world(ledger.worker(rank)).create_cartesian_topology_partition([1, 64, 64])
    ledger.declare(Layout.balanced(P.geometry, (2, 640, 640)))
    x = torch.empty(2, 10, 10, device="meta", requires_grad=True)
    y = nn.HaloExchange(P, [(0, 0), (1, 1), (1, 1)])(x)
    assert y.shape == (2, 12, 12)
    assert ledger.messages_sent(rank) == 8
    assert ledger.bytes_sent(rank, "message") == 4 * 2 * (4 * 10 + 4)
    y.backward(torch.empty_like(y))
    assert ledger.messages_sent(rank) == 16


def test_what_all_workers_send_is_what_all_receive():
    ledger = Ledger(6)
    layouts = []
    for rank in range(6):
        world = gridwise.world(ledger.worker(rank))
        P_x, P_y = (world.create_cartesian_topology_partition(shape) for shape in ([6, 1], [2, 3]))
        layouts = [Layout.balanced(P_x.geometry, (7, 5)), Layout.balanced(P_y.geometry, (7, 5))]
        ledger.declare(layouts[0])
        nn.Repartition(P_x, P_y)(torch.empty(layouts[0].block(rank).shape, device="meta"))
    stays = sum((box.volume if (box := layouts[0].block(r).intersect(layouts[1].block(r))) else 0) for r in range(6))
    assert sum(ledger.bytes_sent(rank, "message") for rank in range(6)) == 4 * (35 - stays)


def test_an_undeclared_layout_is_an_error_that_says_what_to_do():
    P = gridwise.world(Ledger(8).worker(3)).create_cartesian_topology_partition([8])
    with pytest.raises(PartitionError, match="declare"):
        nn.HaloExchange(P, [(1, 1)])(torch.empty(4, device="meta"))


def test_control_messages_do_not_grow_with_the_number_of_workers():
    planning, calling = [], []
    for side in (8, 64):
        ledger = Ledger(side * side)
        P = gridwise.world(ledger.worker(5)).create_cartesian_topology_partition([side, side])
        ledger.declare(Layout.balanced(P.geometry, (4 * side, 4 * side)))
        layer = nn.HaloExchange(P, [(1, 1), (1, 1)])
        layer(torch.empty(4, 4, device="meta"))
        planning.append(ledger.bytes_sent(5, "control"))
        ledger.entries.clear()
        for _ in range(3):
            layer(torch.empty(4, 4, device="meta"))
        calling.append(ledger.bytes_sent(5, "control"))
    assert calling == [3 * 5 * 8] * 2
    assert planning[1] - planning[0] == 2 * 8 * 2 * (64 - 8)  # two numbers for each place along each axis


def test_a_pretended_worker_learns_from_those_that_ran_before_it():
    ledger = Ledger(4)
    got = {}
    for rank in (2, 0, 1, 3):  # the source first
        world = gridwise.world(ledger.worker(rank))
        P_x = world.create_partition_inclusive([2]).create_cartesian_topology_partition([1, 1])
        P_y = world.create_cartesian_topology_partition([2, 2])
        x = torch.empty(3, 5, dtype=torch.float64, device="meta", requires_grad=True)
        y = nn.Broadcast(P_x, P_y)(x if rank == 2 else gridwise.zero_volume_tensor())
        got[rank] = (y.shape, y.dtype, y.device.type, y.requires_grad)
        y.sum().backward()
    assert set(got.values()) == {((3, 5), torch.float64, "meta", True)}
    assert [ledger.bytes_sent(rank, "copy") for rank in range(4)] == [0, 0, 3 * 3 * 5 * 8, 0]
    assert [ledger.bytes_sent(rank, "sum") for rank in range(4)] == [3 * 5 * 8, 3 * 5 * 8, 0, 3 * 5 * 8]


def test_layouts_that_cannot_be_told_apart_are_an_error_until_another_worker_knows():
    def answer(rank, rows):
        P = gridwise.world(ledger.worker(rank)).create_cartesian_topology_partition([2])
        return nn.HaloExchange(P, [(1, 1)])(torch.empty(rows, device="meta")).shape

    ledger = Ledger(2)
    P = gridwise.world(ledger.worker(0)).create_cartesian_topology_partition([2])
    ledger.declare(Layout.balanced(P.geometry, (7,)), Layout.balanced(P.geometry, (8,)))
    with pytest.raises(PartitionError, match="several layouts were declared"):
        answer(0, 4)
    assert answer(1, 3) == (4,)
    assert answer(0, 4) == (5,)


def test_a_broadcast_to_a_pretended_worker_says_that_it_cannot_know_the_shape():
    world = gridwise.world(Ledger(4).worker(1))
    P_x = world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])
    P_y = world.create_cartesian_topology_partition([2, 2])
    with pytest.raises(PartitionError):
        nn.Broadcast(P_x, P_y)(gridwise.zero_volume_tensor())
