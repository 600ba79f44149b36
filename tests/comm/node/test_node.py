"""Collectives among workers of one machine, for every number of them and every size."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.comm.launching.start import mpi_missing
from gridwise.comm.node import futex, mailboxes, segment
from gridwise.comm.node import node as node_module
from gridwise.testing import workers

from .crew import crew

needs_mpi = pytest.mark.skipif(mpi_missing() is not None, reason="no MPI")


@pytest.fixture(autouse=True)
def small_slots(monkeypatch):
    monkeypatch.setattr(segment, "CHUNK", 16384)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_agreements_and_gatherings(n):
    ranks = [3 * i + 1 for i in range(n)]

    def body(node, rank):
        team = tuple(ranks)
        values = np.array([rank, -rank, 7], dtype=np.int64)
        node.all_max(values, team)
        assert values.tolist() == [ranks[-1], -1, 7]
        texts = [b"x" * (r % 4) for r in ranks]
        assert node.gather_bytes(b"x" * (rank % 4), [len(t) for t in texts], team) == texts
        for root in (ranks[0], ranks[-1]):
            x = torch.full((5000,), rank, dtype=torch.uint8)
            node.copy_from(x, root, team)
            assert (x == root).all()

    crew(n, body, ranks)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("count", [1, 10, 3000, 50_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_sums_are_bitwise_the_same_everywhere_and_every_time(n, count, dtype):
    numbers = [torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    parts = [(x * 1e3).to(dtype) for x in numbers]

    def body(node, rank):
        total = torch.empty(count, dtype=dtype)
        node.all_sum(total, parts[rank], tuple(range(n)))
        inplace = parts[rank].clone()
        node.all_sum(inplace, inplace, tuple(range(n)))
        assert torch.equal(total, inplace)
        return total

    first, *others = crew(n, body)
    assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(first, torch.stack(parts).sum(0), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("cores", [1, 2])
def test_who_has_no_core_of_its_own_sleeps_at_once(cores, monkeypatch):
    sleeps, wait = [], futex.wait
    monkeypatch.setattr(futex, "wait", lambda *args: sleeps.append(args) or wait(*args))
    monkeypatch.setattr(mailboxes, "SPIN_SECONDS", 60.0)
    monkeypatch.setattr(node_module, "cores", lambda: cores)
    is_waiting = threading.Event()

    def body(node, rank):
        if rank == 1:
            is_waiting.wait()
            time.sleep(0.2)
        is_waiting.set()
        node.all_max(np.array([rank], dtype=np.int64), (0, 1))

    crew(2, body)
    assert bool(sleeps) == (cores < 2)


@workers(2, 3)
def test_workers_of_this_machine_find_one_another():
    node = gridwise.world().transport.node
    assert node is not None
    assert node.covers(gridwise.world().team, 1 << 20)


def test_it_can_be_switched_off():
    with Pool(2, "gloo", env={"GRIDWISE_SHARED_MEMORY": "off"}) as pool:
        assert pool.run(lambda: gridwise.world().transport.node is None) == [True, True]


def test_one_worker_without_shared_memory_does_not_hold_up_the_others():
    def made_without_it_on_worker_1() -> list[bool]:
        before, os.environ["GRIDWISE_SHARED_MEMORY"] = gridwise.world(), "off" if gridwise.world().rank == 1 else "on"
        world = gridwise.world(torch.distributed.new_group())
        del os.environ["GRIDWISE_SHARED_MEMORY"]
        world.barrier()
        assert before.transport.node is not None
        return [rank in getattr(world.transport.node, "_places", ()) for rank in range(3)]

    with Pool(3, "gloo") as pool:
        found = pool.run(made_without_it_on_worker_1, timeout=100)
    assert found == [[True, False, True], [False] * 3, [True, False, True]]


def mapped() -> int:
    gc.collect()
    return sum("/memfd:gridwise" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("kind", ["gloo", pytest.param("mpi", marks=needs_mpi)])
def test_the_memory_goes_with_the_world(kind):
    def close_a_second_world() -> None:
        world = gridwise.world()
        world.barrier()
        before = mapped()
        if kind == "mpi":
            from mpi4py import MPI

            comm = MPI.COMM_WORLD.Dup()
        else:
            comm = torch.distributed.new_group([0, 1])
        second = gridwise.world(comm)
        second.transport.all_sum(torch.ones(100_000), (0, 1))
        assert mapped() == before + 1
        second.deactivate()
        assert mapped() == before

    with Pool(2, kind) as pool:  # of two: making a world is a call of all workers
        pool.run(close_a_second_world)


@pytest.mark.parametrize("n", [90, 91, 1000, 100_000])
def test_very_many_workers_have_slots_that_are_large_enough_or_none_at_all(n):
    chunk = segment.SegmentLayout(n).chunk
    assert (chunk >= segment.MIN_SLOT) == (n <= 90)
    assert chunk % 4096 == 0


@needs_mpi
def test_messages_to_this_machine_and_to_others_go_together():
    """0 sends to 2, elsewhere, who then sends to 1, who then sends to 0: which waits for that all the while."""

    def ring() -> float:
        from mpi4py import MPI

        from gridwise.comm.node import node

        rank, before = gridwise.world().rank, node.machine
        node.machine = lambda: before() + (b" elsewhere" if rank == 2 else b"")
        transport = gridwise.world(MPI.COMM_WORLD.Dup()).transport
        node.machine = before
        assert (transport.node is None) == (rank == 2)
        x, y = torch.full((1 << 21,), 7.0), torch.empty(1 << 21)
        if rank == 0:
            transport.exchange([(2, x)], [(1, y)])
        else:
            transport.exchange([], [((rank + 1) % 3, y)])
            transport.exchange([(rank - 1, y)], [])
        return y[-1].item()

    with Pool(3, "mpi") as pool:
        assert pool.run(ring, timeout=100) == [7.0] * 3
