"""Worlds made from communicators and process groups: kept with them, and closed without leaving anything."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import gridwise
from gridwise.comm.launching.find import current
from gridwise.errors import TransportError
from gridwise.testing import workers


@workers(2, transports=("mpi",))
def test_a_communicator_that_was_freed_and_made_again_has_a_world_of_its_own():
    """Handles are local: here one worker gets the old one again, and the other does not."""
    from mpi4py import MPI

    first = MPI.COMM_WORLD.Split(0)
    P_first = gridwise.world(first)
    assert gridwise.world(first) is P_first
    first.Free()
    spare = MPI.COMM_SELF.Dup() if MPI.COMM_WORLD.Get_rank() == 0 else None
    second = MPI.COMM_WORLD.Split(0)
    P_second = gridwise.world(second)
    assert P_second.transport is not P_first.transport
    P_second.barrier()
    P_first.barrier()
    for P in (P_first, P_second):
        P.deactivate()
    second.Free()
    if spare is not None:
        spare.Free()


@workers(2, transports=("mpi",))
def test_a_duplicate_has_a_world_of_its_own():
    from mpi4py import MPI

    first = MPI.COMM_WORLD.Dup()
    P_first = gridwise.world(first)
    second = first.Dup()
    P_second = gridwise.world(second)
    assert P_second.transport is not P_first.transport
    for P, comm in ((P_first, first), (P_second, second)):
        P.deactivate()
        comm.Free()


def made_world(kind: str) -> gridwise.Partition:
    if kind == "mpi":
        from mpi4py import MPI

        return gridwise.world(MPI.COMM_WORLD.Dup())
    return gridwise.world(dist.new_group(list(range(dist.get_world_size()))))


def in_use() -> tuple[int, int, int]:
    """Descriptors, threads and children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(os.listdir("/dev/fd")), threading.active_count(), len(children)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts children, which needs /proc")
@workers(2)
def test_worlds_that_are_deactivated_leave_nothing(gridwise_setting):
    transport, _ = gridwise_setting
    current().barrier()

    def one() -> None:
        if transport == "mpi":
            from mpi4py import MPI

            comm = MPI.COMM_WORLD.Dup()
            P = gridwise.world(comm)
        else:
            group = dist.group.WORLD
            P = gridwise.world(group)
        P_x = P.create_cartesian_topology_partition([2])
        gridwise.nn.AllSumReduce(P_x, (0,))(torch.ones(3))
        P.deactivate()
        assert not P.active
        if transport == "mpi":
            comm.Free()

    one()
    time.sleep(1.0)  # for the end of its hub
    deadline = time.monotonic() + 20
    before = in_use()
    for _ in range(8):
        one()
    while (after := in_use()) > before and time.monotonic() < deadline:
        time.sleep(0.1)  # the last hub is on its way out
    assert all(now <= then for now, then in zip(after, before, strict=True)), f"{before} became {after}"
    current().barrier()


@workers(2)
def test_what_was_made_from_a_closed_world_is_refused(gridwise_setting):
    P = made_world(gridwise_setting[0])
    layer = gridwise.nn.AllSumReduce(P.create_cartesian_topology_partition([2]), (0,))
    layer(torch.ones(3))
    P.deactivate()
    P.deactivate()
    with pytest.raises(TransportError, match="in a world that was closed"):
        layer(torch.ones(3))
    current().barrier()
