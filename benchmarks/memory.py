"""Peak memory of a training step on each worker, against 1/P of the sequential step in the same run.

    python benchmarks/memory.py [--transport mpi|gloo] [--workers 2 4]

Counted are the bytes that torch's allocator hands out during the step (forward, backward, optimiser), from the
profiler's record of every allocation: activations, halos, gradients and workspaces of kernels. As a cross-check, the
growth of the resident set, with a malloc that returns every freed tensor to the system.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.planning.halos import observed_fetches
from layers_norm import UNet

MIB = 2**20
ENV = {
    "GRIDWISE_MALLOC": "off",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "OMP_NUM_THREADS": "1",
    "KINETO_LOG_LEVEL": "9",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


@dataclass
class Peaks:
    """Bytes: 1/P of the sequential step, and ours; the same of the resident set; and the halos that a step receives."""

    share: float
    ours: int
    share_resident: float
    resident: int
    halos: int


def stack(layer: type[torch.nn.Module], channels: int, depth: int) -> torch.nn.Sequential:
    parts = [part for _ in range(depth) for part in (layer(channels, channels, 3, padding=1), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts)


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "conv2d + relu, 6 times, (2,16,512,256)": (lambda: stack(torch.nn.Conv2d, 16, 6), (2, 16, 512, 256)),
    "conv3d + relu, 6 times, (1,8,96,128,32)": (lambda: stack(torch.nn.Conv3d, 8, 6), (1, 8, 96, 128, 32)),
    "U-Net (1,3,512,256)": (UNet, (1, 3, 512, 256)),
}


def step_of(model: torch.nn.Module, x: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step


def peak_of(step: Callable[[], None]) -> int:
    """The peak of the bytes handed out by the allocator during the step, above those before it."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    held = peak = 0
    for event in sorted(record.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def resident_growth_of(step: Callable[[], None]) -> int:
    """The largest growth of the resident set during the step."""
    step()
    before = _resident("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak starts anew
    step()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))


def measured(name: str) -> Peaks:
    """The peaks of one model; run by each worker."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world, (make, shape) = gridwise.world(), MODELS[name]
    P_x = world.create_cartesian_topology_partition([1, 1, world.size, *(1 for _ in shape[3:])])
    sequential, x = make(), torch.randn(shape)
    alone = step_of(sequential, x)
    share, share_resident = peak_of(alone) / world.size, resident_growth_of(alone) / world.size
    block = x.narrow(2, world.rank * shape[2] // world.size, shape[2] // world.size).clone()
    model = gridwise.distribute(copy.deepcopy(sequential), P_x)
    step = step_of(model, block)
    ours, resident = peak_of(step), resident_growth_of(step)
    rows: list[int] = []
    with observed_fetches(lambda route: rows.extend(message.volume for message in route.receives)):
        step()
    return Peaks(share, ours, share_resident, resident, x.element_size() * sum(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="mpi", choices=("mpi", "gloo"))
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    table = Table("step", "workers", "1/P of sequential", "ours", "ratio", "less halos", "resident")
    table.title = f"peak memory of the worker that needs most, over {options.transport}; goal: 1.15 less halos"
    for workers in options.workers:
        with Pool(workers, options.transport, env=ENV) as pool:
            for name in MODELS:
                most = max(pool.run(measured, name), key=lambda peaks: peaks.ours)
                ratios = (
                    most.ours / most.share,
                    (most.ours - most.halos) / most.share,
                    most.resident / most.share_resident,
                )
                sizes = (f"{nbytes / MIB:.1f} MiB" for nbytes in (most.share, most.ours))
                table.add_row(name, str(workers), *sizes, *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
