"""Whether plans rank grids correctly: steps of two models on every grid of the workers, planned and measured.

    python benchmarks/planning_order.py [--workers 2] [--transport mpi|gloo] [--save FILE]

The machine is calibrated in the same run, as by `gridwise doctor --calibrate`, without using either of the models. The
result is the share of pairs of grids that the plan puts in the right order, among those whose measured medians differ
by more than their spread (their interquartile ranges do not overlap); goal: 0.9 with a core for each worker. A step is
forward and backward, started by all workers together, and ends with the slowest.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.planning import Machine
from gridwise.planning.calibrate import calibrated
from gridwise.planning.search import grids_of
from layers_norm import UNet
from planning import UNet3d

MODELS = {"U-Net (4,3,192,256)": (UNet, (4, 3, 192, 256)), "3-D U-Net (2,1,32,48,64)": (UNet3d, (2, 1, 32, 48, 64))}
Grid = tuple[int, ...]
Case = tuple[str, Grid]


def step_seconds(name: str, grid: Grid, repeats: int) -> list[float]:
    """Seconds of some steps, each started together; run by each worker."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition(grid)
    model, x = gridwise.distribute(make(), P_x), gridwise.scatter(torch.randn(shape), P_x)
    spent = []
    for _ in range(repeats + 2):
        world.transport.barrier()
        began = time.perf_counter()
        y = model(x)
        y.backward(torch.ones_like(y))
        spent.append(time.perf_counter() - began)
    return spent[2:]


def planned_seconds(cases: list[Case], machine: Machine) -> dict[Case, float]:
    """This worker's share of the plans; run by each worker."""
    world = gridwise.world()
    found = {}
    for name, grid in cases[world.rank :: world.size]:
        make, shape = MODELS[name]
        found[name, grid] = gridwise.plan(make(), grid, shape, machine=machine).time.seconds
    return found


def quartiles(samples: list[float]) -> tuple[float, float]:
    ordered = sorted(samples)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--transport", default="mpi", choices=("mpi", "gloo"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--save", type=Path, help="write the samples to this file, as JSON")
    options = parser.parse_args(given)
    machine = calibrated(options.workers, options.transport)
    cases = [(name, grid) for name, (_, shape) in MODELS.items() for grid in grids_of(options.workers, shape)]
    samples: dict[Case, list[float]] = {}
    planned: dict[Case, float] = {}

    def save() -> None:
        if options.save:
            rows = [[*case, planned.get(case), samples[case]] for case in samples]
            options.save.write_text(json.dumps({"machine": machine.as_toml(), "rows": rows}), encoding="utf-8")

    with Pool(options.workers, options.transport) as pool:
        for case in cases:
            workers = pool.run(step_seconds, *case, options.repeats)
            samples[case] = [max(each) for each in zip(*workers, strict=True)]
            save()
        for part in pool.run(planned_seconds, cases, machine):
            planned.update(part)
    save()
    report(machine, f"{options.workers} workers over {options.transport}", planned, samples)


def report(
    machine: Machine,
    where: str,
    planned: dict[Case, float],
    samples: dict[Case, list[float]],
) -> None:
    """Print the table, and how many pairs are in the right order."""
    table = Table("model", "grid", "planned ms", "median ms", "quartiles ms", "planned / measured")
    table.title = f"{where}, {machine.name}; planned against measured"
    for case in sorted(samples, key=lambda case: (case[0], median(samples[case]))):
        times = planned[case], median(samples[case]), *quartiles(samples[case])
        first, middle, low, high = (f"{1e3 * seconds:.1f}" for seconds in times)
        table.add_row(
            case[0], "x".join(map(str, case[1])), first, middle, f"{low} to {high}", f"{times[0] / times[1]:.2f}"
        )
    console = Console(width=130)
    console.print(table)
    for name in MODELS:
        of_model = [case for case in samples if case[0] == name]
        right = pairs = 0
        for a, b in combinations(of_model, 2):
            (low_a, high_a), (low_b, high_b) = quartiles(samples[a]), quartiles(samples[b])
            if high_a < low_b or high_b < low_a:
                pairs += 1
                right += (planned[a] < planned[b]) == (median(samples[a]) < median(samples[b]))
        ratios = [log(planned[case] / median(samples[case])) for case in of_model]
        spread = f"{exp(min(ratios)):.2f} to {exp(max(ratios)):.2f}, typically {exp(median(ratios)):.2f}"
        share = f"{right / pairs:.2f}" if pairs else "none"
        console.print(f"{name}: {right} of {pairs} pairs in the right order ({share}); planned / measured {spread}")


if __name__ == "__main__":
    main()
