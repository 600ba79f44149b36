"""The numbers of a `Machine`, measured here: all workers of this machine compute at the same time, and talk in pairs.

    convolutions, products    forward and backward of middle-sized ones, in float32 and float64; the median of some repeats
    memory bandwidth          a sum of two large tensors
    an operator               a sum of two tiny ones
    messages                  exchanges of 8 bytes and of 4 MiB between neighbours

Only workers of one machine are measured: what is between nodes is taken to be as fast, until the file says otherwise.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from ..comm.launching import find
from ..comm.launching.cores import cores
from ..comm.launching.launch import launch
from .machine import Link, Machine

REPEATS = 7
SMALL, LARGE = 8, 1 << 22
DTYPES = (torch.float32, torch.float64)
Measured = dict[str, float]


def calibrated(workers: int | None = None, transport: str = "auto") -> Machine:
    """Measure this machine with so many workers; by default two, or as many as it has cores."""
    count = workers or max(2, cores())
    found = launch(measure, workers=count, transport=transport, timeout=600.0)
    worst = {name: max(each[name] for each in found) for name in found[0]}  # seconds: of the slowest worker
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    flops = {kind: {name: 1 / worst[f"{kind} {name}"] for name in names} for kind in ("conv", "matmul")}
    link = Link(worst["latency"], 1 / worst["byte"])
    return Machine(
        f"{platform.node() or 'this machine'}, {count} workers on {cores()} cores",
        f"gridwise doctor --calibrate, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; between nodes as inside one",
        True,
        _memory() // count,
        count,
        1 / worst["memory byte"],
        worst["call"],
        0.0,
        flops,
        link,
        link,
    )


def measure() -> Measured:
    """Runs on every worker at the same time: seconds for one operation, one byte, one call, by name."""
    found: Measured = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        found[f"conv {name}"] = _conv(dtype)
        found[f"matmul {name}"] = _matmul(dtype)
    large = torch.ones(1 << 23)
    out = torch.empty_like(large)
    found["memory byte"] = _timed(lambda: torch.add(large, large, out=out)) / (2 * large.nbytes)
    tiny = torch.ones(4)
    found["call"] = _timed(lambda: [tiny + tiny for _ in range(200)]) / 200
    latency = _exchange(SMALL, 50)
    found["latency"] = latency
    found["byte"] = max(1e-13, (_exchange(LARGE, 5) - latency) / LARGE)
    return found


def _conv(dtype: torch.dtype) -> float:
    """Seconds for an operation of a convolution, forward and backward."""
    x = torch.ones(1, 16, 96, 96, dtype=dtype, requires_grad=True)
    weight = torch.ones(16, 16, 3, 3, dtype=dtype, requires_grad=True)
    operations = 3 * 2 * 16 * 16 * 9 * 96 * 96

    def step() -> None:
        y = torch.nn.functional.conv2d(x, weight, padding=1)
        torch.autograd.grad(y, (x, weight), y)

    return _timed(step) / operations


def _matmul(dtype: torch.dtype) -> float:
    a = torch.ones(256, 256, dtype=dtype)
    return _timed(lambda: a @ a) / (2 * 256**3)


def _exchange(nbytes: int, repeats: int) -> float:
    """Seconds for a message of this size to a neighbour and one from it, at the same time."""
    transport = find.current()
    peer = transport.rank ^ 1
    if peer >= transport.size:
        peer = transport.rank  # nobody is left: the others are measured without it
    sent, arrived = torch.ones(nbytes, dtype=torch.uint8), torch.empty(nbytes, dtype=torch.uint8)

    def swap() -> None:
        for _ in range(repeats):
            if peer != transport.rank:
                transport.exchange([(peer, sent)], [(peer, arrived)], "a calibration")

    return max(1e-7, _timed(swap) / repeats)


def _timed(call: Callable[[], object]) -> float:
    """The median time of a call, which all workers begin together."""
    call()
    spent = []
    for _ in range(REPEATS):
        find.current().barrier()
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return median(spent)


def _memory() -> int:
    """Bytes of this machine."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return 1024 * int(file.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return 16 << 30


def write_calibration(path: Path, machine: Machine) -> None:
    """Write the file, and the folder that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(machine.as_toml(), encoding="utf-8")
