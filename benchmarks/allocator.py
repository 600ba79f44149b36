"""What keeping freed memory gains and costs: large temporary tensors with GRIDWISE_MALLOC on and off.

python benchmarks/allocator.py
"""

from __future__ import annotations

import resource
import time
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from gridwise.comm.launching.pool import Pool


def convolution_step(rounds: int) -> tuple[float, int, float, float]:
    """Median seconds of a step, its page faults, and peak and final resident memory in MiB."""
    torch.set_num_threads(1)
    layer = torch.nn.Conv2d(16, 16, 3, padding=1)
    x = torch.randn(4, 16, 256, 512, requires_grad=True)
    times, faults = [], 0
    for _ in range(rounds):
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        layer(x).sum().backward()
        times.append(time.perf_counter() - start)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return median(times), faults, peak, _resident()


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    table = Table("GRIDWISE_MALLOC", "step", "page faults a step", "peak memory", "memory afterwards")
    for setting in ("off", "on"):
        with Pool(2, env={"GRIDWISE_MALLOC": setting, "OMP_NUM_THREADS": "1"}) as pool:
            seconds, faults, peak, after = pool.run(convolution_step, 12)[0]
        table.add_row(setting, f"{seconds * 1e3:.0f} ms", str(faults), f"{peak:.0f} MiB", f"{after:.0f} MiB")
    table.title = "conv2d (4,16,256,512) 16 -> 16 k3 on each of 2 workers, forward + backward"
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
