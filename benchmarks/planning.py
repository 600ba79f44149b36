"""How planning grows with the number of workers, and whether grids are in the right order.

    python benchmarks/planning.py [--part growth|order] [--workers 2] [--transport mpi|gloo]

growth: a 3-D U-Net on 1024^3 voxels, on 8 to 4,096 workers; goal: 60 s and 2 GiB in all. Each in a process of its own.
order: steps of two models, which were not used in calibration, on every grid of the workers, measured and planned for the
machine as it is calibrated in the same run. Of all pairs of grids whose medians differ by more than their spread, the share
that the plan puts in the right order; goal: 0.9 with a core for each worker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.planning.calibrate import calibrated
from gridwise.planning.search import grids_of
from layers_norm import UNet

GRIDS = [(2, 2, 2), (4, 4, 4), (8, 8, 8), (16, 16, 16)]
VOXELS = (1, 1, 1024, 1024, 1024)
REPEATS = 9


class UNet3d(nn.Module):
    """Four levels, two convolutions each, batch norm, joined on the way up."""

    def __init__(self, base: int = 16, levels: int = 4) -> None:
        super().__init__()
        widths = [base * 2**i for i in range(levels)]
        self.downs = nn.ModuleList(self._double(a, b) for a, b in zip([1, *widths], widths, strict=False))
        self.pool = nn.MaxPool3d(2)
        pairs = list(itertools.pairwise(widths))[::-1]
        self.ups = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairs)
        self.joins = nn.ModuleList(self._double(2 * a, a) for a, _ in pairs)
        self.out = nn.Conv3d(base, 2, 1)

    @staticmethod
    def _double(a: int, b: int) -> nn.Sequential:
        first = nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.ReLU(inplace=True)
        return nn.Sequential(*first, nn.Conv3d(b, b, 3, padding=1), nn.BatchNorm3d(b), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, down in enumerate(self.downs):
            x = down(self.pool(x) if i else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.out(x)


def grow(grid: tuple[int, ...]) -> dict[str, float]:
    """Plan one grid, here."""
    began, spent = time.perf_counter(), time.process_time()
    plan = gridwise.plan(UNet3d(), (1, 1, *grid), VOXELS, optimizer=torch.optim.AdamW)
    return {
        "roles": len(plan.workers),
        "exact": plan.exact,
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - spent,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory": max(worker.memory for worker in plan.workers) / 2**30,
    }


def growth(console: Console) -> None:
    table = Table("workers", "roles run", "exact", "seconds", "of the processor", "resident MiB", "GiB of a worker")
    table.title = "planning a 3-D U-Net on 1024^3 voxels; goal: 60 s and 2 GiB"
    for grid in GRIDS:
        command = [sys.executable, __file__, "--one", "x".join(map(str, grid))]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        numbers = (found["seconds"], found["cpu"], found["resident"], found["memory"])
        size = str(grid[0] * grid[1] * grid[2])
        table.add_row(size, str(found["roles"]), str(found["exact"]), *(f"{n:.1f}" for n in numbers))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("growth", "order"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--transport", default="mpi", choices=("mpi", "gloo"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(grow(tuple(map(int, options.one.split("x"))))))
        return
    console = Console(width=130)
    if options.part != "order":
        growth(console)
    if options.part != "growth":
        order(console, options.workers, options.transport)


if __name__ == "__main__":
    main()
