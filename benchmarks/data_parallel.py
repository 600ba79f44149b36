"""A batch split over workers, against torch's DistributedDataParallel and against no communication at all.

    python benchmarks/data_parallel.py [--workers 8] [--rounds 11] [--wire bfloat16]

The same U-Net runs on the same blocks three times, taking turns in the same processes: by `gridwise.distribute` on a
grid that cuts only the batch, by DistributedDataParallel over gloo, and alone. With group norm all three do the same
work. With batch norm they do not: ours uses the mean and variance of the whole batch, as one process would,
DistributedDataParallel those of each worker's samples.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.comm.transports.torch_distributed import TorchTransport
from layers import measured
from layers_norm import UNet, step

CASES = {
    "(1,3,256,256) a worker, width 16": (16, (1, 3, 256, 256)),
    "(1,3,64,64) a worker, width 64": (64, (1, 3, 64, 64)),
}
"""Much work with few parameters, and little work with many."""
GOAL = 1.10


def with_groups(model: torch.nn.Module) -> torch.nn.Module:
    """The model with group norm in place of batch norm."""
    for module in model.modules():
        for name, part in module.named_children():
            if isinstance(part, torch.nn.BatchNorm2d):
                setattr(module, name, torch.nn.GroupNorm(4, part.num_features))
    return model


def on_wire(wire: str, run: Callable[[], object]) -> Callable[[], None]:
    """The step with its gradients sent in this dtype; 'full' sends them in their own."""
    dtype = None if wire == "full" else getattr(torch, wire)

    def both() -> None:
        with gridwise.gradient_wire(dtype):
            run()

    return both


def times(rounds: int, wire: str) -> list[tuple[str, str, list[float]]]:
    """Run by each worker: the case, its norm, and seconds of ours, DistributedDataParallel's and the model's alone."""
    torch.set_num_threads(1)
    world = gridwise.world()
    transport = world.transport
    assert isinstance(transport, TorchTransport)
    group = transport.group_of(transport.everyone)
    P_x = world.create_cartesian_topology_partition([world.size, 1, 1, 1])
    found = []
    for norm in ("group", "batch"):
        for name, (width, block) in CASES.items():

            def made(width: int = width, norm: str = norm) -> torch.nn.Module:
                torch.manual_seed(0)
                return with_groups(UNet(width)) if norm == "group" else UNet(width)

            model = gridwise.distribute(made(), P_x, example=((block[0] * world.size, *block[1:]),))
            sides = [
                on_wire(wire, step(model, gridwise.nn.DistributedCrossEntropyLoss(model.P_y), *block)),
                step(DistributedDataParallel(made(), process_group=group), torch.nn.CrossEntropyLoss(), *block),
                step(made(), torch.nn.CrossEntropyLoss(), *block),
            ]
            found.append((name, norm, measured(sides, rounds)))
    return found


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=min(8, len(os.sched_getaffinity(0))))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--wire", default="full", choices=("full", "bfloat16", "float16"), help="of our gradients")
    arguments = parser.parse_args(given)
    title = f"{arguments.workers} workers over gloo, {len(os.sched_getaffinity(0))} cores"
    title += "" if arguments.wire == "full" else f", our gradients as {arguments.wire} on the wire"
    columns = "U-Net step", "norm", "ours ms", "DDP ms", "alone ms", "ours / DDP", "goal", "ours / alone"
    table = Table(*columns, title=title)
    with Pool(arguments.workers, "gloo") as pool:
        for name, norm, seconds in pool.run(times, arguments.rounds, arguments.wire)[0]:
            ours, ddp, alone = seconds
            goal = f"{GOAL:.2f}" if norm == "group" else ""
            table.add_row(
                name, norm, *(f"{1e3 * each:.1f}" for each in seconds), f"{ours / ddp:.2f}", goal, f"{ours / alone:.2f}"
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
