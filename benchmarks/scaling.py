"""Weak scaling of a U-Net step on the CPU: the same block per worker, on more and more workers of one machine.

    python benchmarks/scaling.py [--transport gloo mpi] [--workers 2 4 8 16] [--sides 128 256] [--rounds 7]

The limit is the time of the slowest of as many independent processes running the plain model on their blocks, in the
same run. `in step` is the same with a barrier after every convolution and norm, forward and backward, where halos and
statistics of other workers are needed: what is lost because cores are not equally fast at every moment. At most one
worker per core is used. `GRIDWISE_SHARED_MEMORY=off` shows the cost of the transport's own messages.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise.comm.launching.pool import Pool
from layers import measured
from layers_norm import UNet, step

GOALS = {128: 1.35, 256: 1.10}
SHAPES = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2), 16: (4, 4)}


def in_step(model: torch.nn.Module) -> torch.nn.Module:
    """The model with a barrier among the workers after every convolution and norm."""
    world = gridwise.world()

    def meet(*given: Any) -> None:
        world.barrier()
        if given[-1].requires_grad:
            given[-1].register_hook(lambda gradient: world.barrier())

    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.BatchNorm2d):
            module.register_forward_hook(meet)
    return model


def ratios(rounds: int, sides: list[int]) -> list[tuple[int, float, float, float]]:
    """For each side length of a block: our seconds, those in step, and the limit's."""
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
        plain = [step(each, torch.nn.CrossEntropyLoss(), *block) for each in (in_step(UNet()), UNet())]
        ours, together, limit = measured([step(model, loss, *block), *plain], rounds)
        found.append((side, ours, together, limit))
    return found


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", nargs="*", default=["gloo", "mpi"], choices=("gloo", "mpi"))
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--sides", nargs="*", type=int, default=[128, 256])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args(given)
    cores = len(os.sched_getaffinity(0))
    words = ("ours ms", "in step ms", "limit ms", "ratio", "goal", "of in step")
    table = Table("workers", "transport", "block", *words, title=f"{cores} cores")
    for workers in [n for n in arguments.workers if n <= cores]:
        for transport in arguments.transport:
            with Pool(workers, transport) as pool:
                for side, *seconds in pool.run(ratios, arguments.rounds, arguments.sides)[0]:
                    ours, together, limit = seconds
                    row = [f"{1e3 * each:.1f}" for each in seconds] + [f"{ours / limit:.2f}"]
                    row += [f"{GOALS.get(side, 1.1):.2f}", f"{ours / together:.2f}"]
                    table.add_row(str(workers), transport, f"{side}x{side}", *row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
