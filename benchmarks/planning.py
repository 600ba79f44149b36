"""The cost of planning: its growth with the number of workers, models of the zoo, and a search.

    python benchmarks/planning.py [--part growth|zoo|search]

growth: a 3-D U-Net on 1024^3 voxels with AdamW, on 8 to 4,096 workers; goal: 60 s and 2 GiB. zoo: ten models on 256
workers; goal: a minute each. search: all grids of 64 workers for the 3-D U-Net on 512^3 voxels. Each runs in its own
process; times are CPU seconds, which other work on the machine changes little, and wall-clock seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import gridwise

GRIDS = [(1, 1, 2, 2, 2), (1, 1, 4, 4, 4), (1, 1, 8, 8, 8), (1, 1, 16, 16, 16)]
VOXELS = (1, 1, 1024, 1024, 1024)
SQUARE = (1, 1, 16, 16)
ZOO = {
    "dcgan_g": (2, 16, 64, 64),
    "dcgan_d": (2, 3, 1024, 1024),
    "pix2pix_unet": (2, 3, 1024, 1024),
    "cyclegan_resnet": (2, 3, 1024, 1024),
    "milesial_unet": (2, 3, 1024, 1024),
    "espcn": (2, 3, 1024, 1024),
    "edsr": (2, 3, 1024, 1024),
    "dncnn": (2, 3, 1024, 1024),
    "convlstm_zeros": (2, 3, 1024, 1024),
    "vanilla_vae": (2, 3, 64, 64),
    "sngan_d_old": (2, 3, 64, 64),
}
"""Input sizes; models whose last layers require a fixed size are planned with that."""


class UNet3d(nn.Module):
    """Four levels of two convolutions with batch norm, and skip connections."""

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


Found = dict[str, Any]


def planned(model: nn.Module, grid: tuple[int, ...], shape: tuple[int, ...]) -> Found:
    plan = gridwise.plan(model, grid, shape, optimizer=torch.optim.AdamW)
    return {
        "roles": len(plan.workers),
        "exact": plan.exact,
        "memory": max(worker.memory for worker in plan.workers) / 2**20,
    }


def of_zoo(name: str) -> Found:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from zoo.classics import CLASSICS

    return planned(CLASSICS[name][0](), SQUARE, ZOO[name])


def searched() -> Found:
    shape = (1, 1, 512, 512, 512)
    found = gridwise.plan(
        UNet3d(), workers=64, input_shape=shape, memory="40GiB", machine="nvidia-a100", optimizer=torch.optim.AdamW
    )
    return {"text": str(found), "tried": len(found.rows)}


def measured(call: Callable[[], Found]) -> Found:
    """The result of the call, and the time and memory it takes."""
    began, spent = time.perf_counter(), time.process_time()
    found = call()
    return {
        **found,
        "seconds": time.perf_counter() - began,
        "processor": time.process_time() - spent,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def apart(*task: str) -> Found:
    """Run a task in its own process."""
    command = [sys.executable, __file__, "--task", *task]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(answer.splitlines()[-1])


def run(task: str, of: str = "") -> Found:
    if task == "growth":
        grid = tuple(map(int, of.split("x")))
        return measured(lambda: planned(UNet3d(), grid, VOXELS))
    return measured(searched if task == "search" else lambda: of_zoo(of))


def costs(found: Found) -> list[str]:
    return [f"{found[name]:.1f}" for name in ("processor", "seconds", "resident")]


def growth(console: Console) -> None:
    table = Table("workers", "roles run", "exact", "seconds of the processor", "of the clock", "MiB", "a worker needs")
    table.title = "planning a 3-D U-Net on 1024^3 voxels; goal: 60 s and 2 GiB"
    for grid in GRIDS:
        found = apart("growth", "x".join(map(str, grid)))
        needs = gridwise.planning.readable(round(found["memory"] * 2**20))
        table.add_row(f"{prod(grid):,}", str(found["roles"]), str(found["exact"]), *costs(found), needs)
    console.print(table)


def zoo(console: Console) -> None:
    table = Table("model", "input", "roles run", "exact", "seconds of the processor", "of the clock", "MiB")
    table.title = "planning models of the zoo on 16 x 16 workers; goal: 60 s"
    for name, shape in ZOO.items():
        found = apart("zoo", name)
        table.add_row(name, "x".join(map(str, shape)), str(found["roles"]), str(found["exact"]), *costs(found))
    console.print(table)


def search(console: Console) -> None:
    found = apart("search")
    console.print(found["text"], markup=False, highlight=False)
    spent = "{} s of the processor, {} s, {} MiB".format(*costs(found))
    console.print(f"a search among {found['tried']} grids of 64 workers: {spent}")


PARTS = {"growth": growth, "zoo": zoo, "search": search}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(run(*options.task)))
        return
    console = Console(width=130)
    for name, part in PARTS.items():
        if options.part in (None, name):
            part(console)


if __name__ == "__main__":
    main()
