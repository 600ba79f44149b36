"""Training, making layers and making worlds, thousands of times: what a process holds stays as it was."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.comm.launching.pool import Pool
from gridwise.comm.launching.start import mpi_missing

TRANSPORTS = ["gloo", pytest.param("mpi", marks=pytest.mark.skipif(mpi_missing() is not None, reason="no MPI"))]
MEGABYTES = 10
"""That the memory of a process may grow by: allocators keep a little more now and then."""

Held = dict[str, int]


def held() -> Held:
    """What this process holds at this moment."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "megabytes": int(status["VmRSS"].split()[0]) // 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "python threads": threading.active_count(),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "shared memory": sum("/dev/shm" in line or "/memfd:" in line for line in maps),
    }


def grid() -> gridwise.CartesianPartition:
    return gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])


def train(steps: int) -> None:
    P_x = grid()
    layers = (nn.DistributedConv2d(P_x, 1, 2, 3, padding=1), nn.DistributedBatchNorm2d(P_x, 2), torch.nn.ReLU())
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 1, 4, 8)).square().mean().backward()
        optimizer.step()


def make_layers(count: int) -> None:
    P_x = grid()
    for i in range(count):
        layer = nn.DistributedConv2d(P_x, 1, 1 + i % 3, 3, padding=1)
        layer(torch.ones(1, 1, 4, 8)).sum().backward()


def make_worlds(count: int) -> None:
    for _ in range(count):
        comm = None
        if gridwise.world().transport.name == "mpi":
            from mpi4py import MPI

            comm = MPI.COMM_WORLD.Dup()
        P = gridwise.world(comm if comm is not None else torch.distributed.group.WORLD)
        P.barrier()
        P.deactivate()
        if comm is not None:
            comm.Free()


def grown(work: Callable[[int], None], times: int) -> tuple[Held, Held]:
    """What this process holds after a tenth of the work, and after all of it."""
    torch.manual_seed(0)
    work(max(1, times // 10))
    time.sleep(1.0)  # hubs end soon after their last worker has left
    before = held()
    work(times)
    time.sleep(1.0)
    after = held()
    gridwise.world().barrier()
    return before, after


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts what is held, which needs /proc")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("work", "times"), [(train, 5000), (make_layers, 2000), (make_worlds, 200)])
def test_nothing_grows(transport: str, work: Callable[[int], None], times: int) -> None:
    with Pool(2, transport) as pool:
        for rank, (before, after) in enumerate(pool.run(grown, work, times, timeout=3000)):
            print(f"\n{work.__name__} {times} times over {transport}, worker {rank}: {before} -> {after}")
            assert after["megabytes"] <= before["megabytes"] + MEGABYTES
            assert {**after, "megabytes": 0} == {**before, "megabytes": 0}
