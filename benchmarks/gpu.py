"""Workers on one GPU, against plain torch and against the same work without communication, in the same run.

    python benchmarks/gpu.py [--transport gloo|mpi ...] [--workers 2 4] [--rounds 15]

One worker: a training step of a distributed model against that of the torch model it was made from. Several workers
sharing the GPU: each runs its block through the plain model, all at once (the limit), and then through the distributed
model. Repartition: 64 MB change owners, against the same copies made by one process; the goal is 1.5 times those plus
0.2 ms for the messages. Medians of the slowest worker; every sample ends with the device idle. No goals for four
workers.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise.comm.launching.pool import Pool
from layers import measured
from layers_norm import UNet
from run import NOTHING_HERE


class Row(NamedTuple):
    """Our seconds and the limit's; the goal is `times` the limit plus `more` seconds."""

    name: str
    ours: float
    limit: float
    times: float
    more: float = 0.0

    @property
    def goal(self) -> str:
        return f"{self.times:.2f}" + (f" + {1e3 * self.more:.1f} ms" if self.more else "")

    @property
    def met(self) -> bool:
        return self.ours <= self.times * self.limit + self.more


sampled = partial(measured, idle=torch.cuda.synchronize)


def step(model: torch.nn.Module, loss: torch.nn.Module, *shape: int) -> Callable[[], object]:
    """A training step of a segmentation model on CUDA."""
    x = torch.randn(shape, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.randint(2, (shape[0], *shape[2:]), device="cuda")

    def run() -> None:
        optimizer.zero_grad()
        loss(model(x), target).backward()
        optimizer.step()

    return run


def steps(rounds: int, workers: int, sizes: list[tuple[tuple[int, ...], int, float]]) -> list[Row]:
    """U-Net steps for each case: (a worker's block, width, goal as a multiple of the limit)."""
    torch.manual_seed(0)
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, workers])
    found = []
    for block, width, times in sizes:
        plain = UNet(width).cuda()
        model = gridwise.distribute(copy.deepcopy(plain), P_x, example=((*block[:-1], block[-1] * workers),))
        loss = gridwise.nn.DistributedCrossEntropyLoss(model.P_y)
        sides = [step(model, loss, *block), step(plain, torch.nn.CrossEntropyLoss(), *block)]
        ours, limit = sampled(sides, rounds, 5)
        found.append(Row(f"U-Net step, {counted(workers)}, blocks {block}, width {width}", ours, limit, times))
    return found


def repartition(rounds: int, workers: int) -> list[Row]:
    """Repartition of 64 MB from rows to columns."""
    world = gridwise.world()
    P_x, P_y = (world.create_cartesian_topology_partition(shape) for shape in ([workers, 1], [1, workers]))
    layer = gridwise.nn.Repartition(P_x, P_y)
    n = 4096
    x = torch.randn(n // workers, n, device="cuda")
    source, copies = torch.randn(n, n, device="cuda"), torch.empty(workers, n, n // workers, device="cuda")

    def alone() -> None:
        if world.rank == 0:
            for part, piece in zip(copies, source.split(n // workers, 1), strict=True):
                part.copy_(piece)

    with torch.no_grad():
        ours, limit = sampled([lambda: layer(x), alone], rounds, 20)
    return [Row(f"Repartition of 64 MB, {counted(workers)}", ours, limit, 1.5, 2e-4)]


def counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", nargs="*", default=["gloo", "mpi"], choices=("gloo", "mpi"))
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        sys.exit(NOTHING_HERE)
    columns = "ours ms", "limit ms", "ratio", "goal", "met"
    table = Table("what", "transport", *columns, title=torch.cuda.get_device_name())
    single = [((1, 3, 256, 256), 16, 1.15), ((8, 3, 512, 512), 64, 1.02)]
    with Pool(1) as pool:
        add(table, "none", pool.run(steps, arguments.rounds, 1, single)[0])
    for transport in arguments.transport:
        for workers in arguments.workers:
            shared = [((1, 3, 256, 128), 16, 2.5), ((4, 3, 256, 512), 64, 1.15)]
            with Pool(workers, transport) as pool:
                add(table, transport, pool.run(repartition, arguments.rounds, workers)[0], workers == 2)
                add(table, transport, pool.run(steps, arguments.rounds, workers, shared)[0], workers == 2)
    Console(width=140).print(table)


def add(table: Table, transport: str, rows: list[Row], with_goals: bool = True) -> None:
    for row in rows:
        figures = f"{row.ours * 1e3:.2f}", f"{row.limit * 1e3:.2f}", f"{row.ours / row.limit:.2f}"
        goal = (row.goal, "yes" if row.met else "no") if with_goals else ("", "")
        table.add_row(row.name, transport, *figures, *goal)


if __name__ == "__main__":
    main()
