"""Convolutions and pooling on 2 workers, forward + backward, against the same local work without communication.

    python benchmarks/layers.py [--transport mpi|gloo] [--rounds 11]

The limit is torch's own layer on each worker's block, in the same processes and with the same allocator setting, the
two sides taking turns. For 3-D convolutions it is the faster of two ways, since torch's weight gradient is twice as
fast if the depth is padded by hand. Medians of the slower worker. The last rows are small layers: the overhead of a
call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import gridwise
from gridwise import nn
from gridwise.comm.launching.pool import Pool

WARM_UP = 3  # rounds that are not counted

Row = tuple[str, float, float]
"""Name, our seconds, the limit's."""
Way = Callable[[torch.nn.Module, Tensor], Callable[[], object]]
"""The call that is measured, made from a layer and an input."""


class HandPadded(torch.nn.Conv3d):
    """torch's 3-D convolution with its depth padded by hand."""

    def forward(self, input: Tensor) -> Tensor:
        depth, *rest = self.padding
        x = F.pad(input, (0, 0, 0, 0, depth, depth))
        return F.conv3d(x, self.weight, self.bias, self.stride, (0, *rest), self.dilation, self.groups)


def measured(
    sides: list[Callable[[], object]], rounds: int, repeat: int = 1, idle: Callable[[], object] = lambda: None
) -> list[float]:
    """Median seconds of the slowest worker; the sides take turns. `idle` waits for a device."""
    world = gridwise.world()
    samples: list[list[float]] = [[] for _ in sides]
    for k in range(-WARM_UP, rounds):
        for side, call in enumerate(sides):
            idle()
            world.barrier()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            idle()
            spent = np.array([int((time.perf_counter() - start) * 1e9 / repeat)], dtype=np.int64)
            world.transport.all_max(spent, world.team)
            if k >= 0:
                samples[side].append(spent[0] / 1e9)
    return [median(sample) for sample in samples]


def both_ways(layer: torch.nn.Module, x: Tensor) -> Callable[[], object]:
    dy = torch.randn_like(layer(x))
    wanted = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), wanted, dy)


def forward(layer: torch.nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: layer(x)


def rows(rounds: int) -> list[Row]:
    """The rows of the table; run by each worker."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = gridwise.world()
    found: list[Row] = []

    def row(
        name: str, grid: list[int], block: tuple[int, ...], ours: type, args: tuple, *limits: type, way: Way = both_ways
    ) -> None:
        P_x = world.create_cartesian_topology_partition(grid)
        x = torch.randn(block, requires_grad=True)
        layer = way(ours(P_x, *args), x)
        sides = [layer, *(way(limit(*args), x) for limit in limits)]
        mine, *theirs = measured(sides, rounds, repeat=1 if x.numel() > 1 << 16 else 100)
        found.append((name, mine, min(theirs)))

    conv, conv3d, pool, mean = (
        nn.DistributedConv2d,
        nn.DistributedConv3d,
        nn.DistributedMaxPool2d,
        nn.DistributedAvgPool2d,
    )
    by_rows, by_columns = [1, 1, 2, 1], [1, 1, 1, 2]
    args = (16, 16, 3, 1, 1)
    row("conv2d (4,16,512,512) k3 p1, rows", by_rows, (4, 16, 256, 512), conv, args, torch.nn.Conv2d)
    row("conv2d (4,16,512,512) k3 p1, columns", by_columns, (4, 16, 512, 256), conv, args, torch.nn.Conv2d)
    block = (1, 8, 48, 96, 96)
    row(
        "conv3d (1,8,96,96,96) k3 p1, depth",
        [1, 1, 2, 1, 1],
        block,
        conv3d,
        (8, 8, 3, 1, 1),
        HandPadded,
        torch.nn.Conv3d,
    )
    image = (4, 16, 256, 512)
    row("max pool (4,16,512,512) k2", by_rows, image, pool, (2,), torch.nn.MaxPool2d)
    row("max pool (4,16,512,512) k3 s2 p1", by_rows, image, pool, (3, 2, 1), torch.nn.MaxPool2d)
    row("average pool (4,16,512,512) k3 s2 p1", by_rows, image, mean, (3, 2, 1), torch.nn.AvgPool2d)
    small = (1, 8, 16, 32)
    row("conv2d (1,8,32,32) k3 p1", by_rows, small, conv, (8, 8, 3, 1, 1), torch.nn.Conv2d)
    row("..., forward alone", by_rows, small, conv, (8, 8, 3, 1, 1), torch.nn.Conv2d, way=forward)
    row("max pool (1,8,32,32) k2", by_rows, small, pool, (2,), torch.nn.MaxPool2d)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="mpi")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    with Pool(2, options.transport) as pool:
        found = pool.run(rows, options.rounds)[0]
    table = Table(
        "layer, forward + backward",
        "ours",
        "limit",
        "ratio",
        "on top",
        "goal",
        title=f"2 workers, {options.transport}",
    )
    for name, mine, limit in found:
        table.add_row(
            name,
            f"{mine * 1e3:.2f} ms",
            f"{limit * 1e3:.2f} ms",
            f"{mine / limit:.2f}",
            f"{(mine - limit) * 1e6:.0f} us",
            "300 us on top" if limit < 2e-3 else "1.15" if name.startswith("conv") else "1.30",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
