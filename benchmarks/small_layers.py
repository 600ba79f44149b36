"""The overhead of calling a small layer: 2 workers against torch's own layer on the same blocks.

    python benchmarks/small_layers.py [--transport mpi|gloo] [--rounds 9]

Microseconds on top of torch's call, forward alone and forward + backward, medians of the slower worker; the two sides
take turns in the same processes.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise.comm.launching.pool import Pool
from layers import both_ways, forward, measured

IMAGE = (1, 8, 16, 32)
LAYERS: list[tuple[str, tuple, dict]] = [
    ("Conv2d", (8, 8, 3, 1, 1), {}),
    ("ConvTranspose2d", (8, 8, 3, 2, 1), {}),
    ("MaxPool2d", (2,), {}),
    ("MaxPool2d", (3, 2, 1), {}),
    ("AvgPool2d", (3, 2, 1), {}),
    ("BatchNorm2d", (8,), {}),
    ("GroupNorm", (2, 8), {}),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}),
    ("Linear", (64, 64), {}),
]


def rows(rounds: int) -> list[tuple[str, float, float]]:
    """Run by each worker: a layer's name, and microseconds on top of torch's, forward and forward + backward."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world, found = gridwise.world(), []
    by_rows, by_batch = (world.create_cartesian_topology_partition(grid) for grid in ([1, 1, 2, 1], [2, 1]))
    for name, args, options in LAYERS:
        of_rows = name != "Linear"
        x = torch.randn(IMAGE if of_rows else (16, 64), requires_grad=True)
        ours = getattr(gridwise.nn, f"Distributed{name}")(by_rows if of_rows else by_batch, *args, **options)
        theirs = getattr(torch.nn, name)(*args, **options)
        sides = [way(layer, x) for way in (forward, both_ways) for layer in (ours, theirs)]
        there, limit, back, limit_back = measured(sides, rounds, repeat=50)
        words = ", ".join([*map(str, args), *(f"{key}={value}" for key, value in options.items())])
        found.append((f"{name}({words})", 1e6 * (there - limit), 1e6 * (back - limit_back)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="mpi", choices=("mpi", "gloo"))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with Pool(2, options.transport) as pool:
        found = pool.run(rows, options.rounds)[0]
    title = f"2 workers over {options.transport}, us on top of torch's call"
    table = Table("layer", "forward", "goal", "forward + backward", title=title)
    for name, there, back in found:
        table.add_row(name, f"{there:.0f}", "300", f"{back:.0f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
