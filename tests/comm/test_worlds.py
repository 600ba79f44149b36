"""Worlds made from communicators and process groups: kept with them, and closed without leaving anything.

Making one is a call of all workers of MPI or of torch.distributed, so the workers are a pool of exactly these two.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import gridwise
from gridwise.comm.launching.find import current
from gridwise.comm.launching.pool import Pool
from gridwise.comm.launching.start import mpi_missing
from gridwise.errors import TransportError

needs_mpi = pytest.mark.skipif(mpi_missing() is not None, reason="no MPI")


@pytest.fixture(scope="module", params=["gloo", pytest.param("mpi", marks=needs_mpi)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(2, request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def mpi_pair() -> Iterator[Pool]:
    with Pool(2, "mpi") as pool:
        yield pool


@needs_mpi
def test_a_communicator_that_was_freed_and_made_again_has_a_world_of_its_own(mpi_pair):
    """Handles are local: here one worker gets the old one again, and the other does not."""
    mpi_pair.run(free_and_make_again)


def free_and_make_again() -> None:
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


@needs_mpi
def test_a_duplicate_has_a_world_of_its_own(mpi_pair):
    mpi_pair.run(duplicate)


def duplicate() -> None:
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
def test_worlds_that_are_deactivated_leave_nothing(pair):
    pair.run(make_and_deactivate, pair.transport)


def make_and_deactivate(transport: str) -> None:
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


def test_what_was_made_from_a_closed_world_is_refused(pair):
    pair.run(use_after_closing, pair.transport)


def use_after_closing(transport: str) -> None:
    P = made_world(transport)
    layer = gridwise.nn.AllSumReduce(P.create_cartesian_topology_partition([2]), (0,))
    layer(torch.ones(3))
    P.deactivate()
    P.deactivate()
    with pytest.raises(TransportError, match="in a world that was closed"):
        layer(torch.ones(3))
    current().barrier()
