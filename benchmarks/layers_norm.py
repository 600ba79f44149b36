"""Batch norm, upsampling, losses and a U-Net step on 2 workers, against the same local work without communication.

    python benchmarks/layers_norm.py [--transport mpi|gloo] [--rounds 11]

The limit is the time that each of two independent processes needs for torch's own layer on its block, in the same run
and with the same allocator settings; the two sides take turns. Batch norm's limit normalises the block by itself:
different numbers, the same work. Medians of the slower worker, forward + backward.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import gridwise
from gridwise.comm.launching.pool import Pool
from layers import measured

Row = tuple[str, float, float, float]


class UNet(torch.nn.Module):
    """Three levels of double convolutions with skip connections."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.downs = torch.nn.ModuleList(self.double(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True))
        self.pool = torch.nn.MaxPool2d(2)
        self.up = torch.nn.Upsample(scale_factor=2, mode="bilinear")
        self.ups = torch.nn.ModuleList(self.double(a + b, a) for a, b in pairwise(sizes))
        self.out = torch.nn.Conv2d(width, 2, 1)

    @staticmethod
    def double(before: int, after: int) -> torch.nn.Sequential:
        layers: list[torch.nn.Module] = []
        for channels in (before, after):
            layers += [torch.nn.Conv2d(channels, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.downs:
            x = down(self.pool(x) if skips else x)
            skips.append(x)
        for up, skip in zip(reversed(self.ups), reversed(skips[:-1]), strict=True):
            x = up(torch.cat([skip, self.up(x)], 1))
        return self.out(x)


def both_ways(layer: torch.nn.Module, *shape: int) -> Callable[[], object]:
    x = torch.randn(shape, requires_grad=True)
    dy = torch.randn_like(layer(x))
    wanted = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), wanted, dy)


def step(model: torch.nn.Module, loss: torch.nn.Module, *shape: int) -> Callable[[], object]:
    x, optimizer = torch.randn(shape), torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.randint(2, (shape[0], *shape[2:]))

    def run() -> None:
        optimizer.zero_grad()
        loss(model(x), target).backward()
        optimizer.step()

    return run


def rows(rounds: int) -> list[Row]:
    """The rows of the table, run by each worker: name, our seconds, the limit's, the target."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    nn, P_x = gridwise.nn, gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    block = (4, 16, 256, 512)
    found: list[Row] = []

    def row(name: str, target: float, ours: Callable[[], object], limit: Callable[[], object]) -> None:
        mine, theirs = measured([ours, limit], rounds)
        found.append((name, mine, theirs, target))

    row(
        "batch norm (4,16,512,512)",
        1.5,
        both_ways(nn.DistributedBatchNorm2d(P_x, 16), *block),
        both_ways(torch.nn.BatchNorm2d(16), *block),
    )
    row(
        "group norm, 4 groups",
        1.5,
        both_ways(nn.DistributedGroupNorm(P_x, 4, 16), *block),
        both_ways(torch.nn.GroupNorm(4, 16), *block),
    )
    for mode in ("nearest", "bilinear"):
        options = {"scale_factor": 2, "mode": mode}
        row(
            f"upsampling (2,16,256,256) x 2, {mode}",
            1.3,
            both_ways(nn.DistributedUpsample(P_x, **options), 2, 16, 128, 256),
            both_ways(torch.nn.Upsample(**options), 2, 16, 128, 256),
        )
    small = (1, 8, 16, 32)
    row(
        "batch norm (1,8,32,32): overhead",
        0.0,
        both_ways(nn.DistributedBatchNorm2d(P_x, 8), *small),
        both_ways(torch.nn.BatchNorm2d(8), *small),
    )
    chain = torch.nn.Sequential(*(torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(20)))
    row(
        "20 convolutions (1,8,32,32) in a model",
        0.0,
        both_ways(gridwise.distribute(copy.deepcopy(chain), P_x), *small),
        both_ways(chain, *small),
    )
    for batch, side in ((1, 256), (2, 512)):
        model = gridwise.distribute(UNet(), P_x, example=((batch, 3, side, side),))
        loss = nn.DistributedCrossEntropyLoss(model.P_y)
        local = batch, 3, side // 2, side
        plain = step(UNet(), torch.nn.CrossEntropyLoss(), *local)
        row(f"U-Net step ({batch},3,{side},{side})", 1.15, step(model, loss, *local), plain)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="mpi", choices=("mpi", "gloo"))
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    with Pool(2, arguments.transport) as pool:
        found = pool.run(rows, arguments.rounds)[0]
    table = Table(
        "work, forward + backward",
        "ours ms",
        "limit ms",
        "ratio",
        "target",
        "on top ms",
        title=f"2 workers over {arguments.transport}",
    )
    for name, ours, limit, target in found:
        wish, more = f"{target:.2f}" if target else "", f"{1e3 * (ours - limit):.2f}"
        table.add_row(name, f"{1e3 * ours:.2f}", f"{1e3 * limit:.2f}", f"{ours / limit:.2f}", wish, more)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
