"""Weak scaling of a U-Net step on the CPU: the same block for each worker, on more and more workers of one machine.

    python benchmarks/scaling.py [--transport gloo mpi] [--workers 2 4 8 16] [--sides 128 256] [--rounds 7]

The limit is what the same number of independent processes need for the plain model on their blocks, in the same run. No more
workers than cores are used. `GRIDWISE_SHARED_MEMORY=off` shows what the transport's own messages cost.
"""

from __future__ import annotations

import argparse
import os

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise.comm.launching.pool import Pool
from layers import measured
from layers_norm import UNet, step

GOALS = {128: 1.35, 256: 1.10}
SHAPES = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2), 16: (4, 4)}


def ratios(rounds: int, sides: list[int]) -> list[tuple[int, float, float]]:
    """For each block's side: our seconds and the limit's."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([1, 1, *SHAPES[world.size]])
    found = []
    rows, columns = SHAPES[world.size]
    for side in sides:
        model = gridwise.distribute(UNet(), P_x, example=((1, 3, side * rows, side * columns),))
        loss = gridwise.nn.DistributedCrossEntropyLoss(model.P_y)
        block = (1, 3, side, side)
        ours, limit = measured([step(model, loss, *block), step(UNet(), torch.nn.CrossEntropyLoss(), *block)], rounds)
        found.append((side, ours, limit))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", nargs="*", default=["gloo", "mpi"], choices=("gloo", "mpi"))
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--sides", nargs="*", type=int, default=[128, 256])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    table = Table("workers", "transport", "block", "ours ms", "limit ms", "ratio", "goal", title=f"{cores} cores")
    for workers in [n for n in arguments.workers if n <= cores]:
        for transport in arguments.transport:
            with Pool(workers, transport) as pool:
                for side, ours, limit in pool.run(ratios, arguments.rounds, arguments.sides)[0]:
                    numbers = f"{ours * 1e3:.1f}", f"{limit * 1e3:.1f}", f"{ours / limit:.2f}"
                    table.add_row(str(workers), transport, f"{side}x{side}", *numbers, f"{GOALS.get(side, 1.1):.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
