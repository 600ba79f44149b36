"""The cost of communication for TAGI on several workers: a joint step against the same work alone, in the same run.

    python benchmarks/tagi_workers.py                          2 workers, MPI and gloo
    python benchmarks/tagi_workers.py --only cnn --batch 128
    python benchmarks/tagi_workers.py --workers 4 --transports mpi

Two ways to share a batch: by samples (`DDPSequential`) and by blocks of images (`on_grid`). The limit is a step of an
ordinary network with as many samples as a worker has, run by all workers at the same time, independently. All take
turns, step by step; the figures are wall times of worker 0 and medians of the ratios of adjacent steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import gridwise
import gridwise.tagi.nn as tagi_nn
from tagi import CASES, Case

IMAGES = {784: (1, 28, 28), 3072: (3, 32, 32)}


def measured(case: Case, workers: int, transport: str, repeat: int) -> dict[str, tuple[float, float]]:
    """(milliseconds, multiple of the limit) of a step, for each way to share its batch."""

    def task() -> dict[str, tuple[float, float]]:
        torch.set_num_threads(1)
        P = gridwise.world()
        steps = ways(case, P, transport)
        times: dict[str, list[float]] = {kind: [] for kind in steps}
        for _ in range(repeat + 2):
            for kind, step in steps.items():
                P.barrier()
                start = time.perf_counter()
                step()
                times[kind].append(1e3 * (time.perf_counter() - start))
        limit = times["alone"][2:]
        ratios = {kind: [t / a for t, a in zip(times[kind][2:], limit, strict=True)] for kind in steps}
        return {kind: (statistics.median(times[kind][2:]), statistics.median(ratios[kind])) for kind in steps}

    return gridwise.launch(task, workers=workers, transport=transport)[0]


def ways(case: Case, P: gridwise.Partition, transport: str) -> dict[str, Callable[[], None]]:
    """A step for each way: alone on a part of the samples, jointly by samples, jointly by blocks of images."""
    x, y = torch.randn(case.batch, *IMAGES[case.inputs]), torch.randn(case.batch, case.outputs)
    mine = gridwise.local_slice(P.create_cartesian_topology_partition([P.size, 1]), y.shape)[0]
    config = tagi_nn.DDPConfig([], transport, P.rank, P.size)
    together = tagi_nn.DDPSequential(case.build(tagi_nn), config, average=False)
    out = {
        "alone": step_of(case.build(tagi_nn), x[mine], y[mine]),
        "samples": step_of(together, x[mine], y[mine]),
    }
    if not case.name.startswith("fnn"):
        P_x = P.create_cartesian_topology_partition([1, 1, P.size, 1])
        net = gridwise.tagi.on_grid(case.build(tagi_nn), P_x)
        blocks = gridwise.local_slice(P_x, x.shape), gridwise.local_slice(net.P_y, y.shape)
        out["images"] = step_of(net, x[blocks[0]], y[blocks[1]])
    return out


def step_of(net: Any, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    updater = tagi_nn.OutputUpdater()

    def step() -> None:
        net(x)
        updater.update(net.output_z_buffer, y, 0.1, net.input_delta_z_buffer)
        net.backward()
        net.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--transports", nargs="*", default=["mpi", "gloo"])
    parser.add_argument("--only", nargs="*", default=["fnn_4096", "cnn", "resnet18"], help="names of networks")
    parser.add_argument("--batch", type=int, help="only the cases with this batch")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    for case in CASES:
        if case.name not in options.only or case.batch not in ((options.batch,) if options.batch else (16, 128)):
            continue
        for transport in options.transports:
            result = measured(case, options.workers, transport, options.repeat)
            told = ", ".join(f"{kind} {ms:.1f} ms ({ratio:.2f})" for kind, (ms, ratio) in result.items())
            print(f"{case.name:10s} {case.batch:4d}  {options.workers} workers, {transport:5s} {told}", flush=True)


if __name__ == "__main__":
    main()
