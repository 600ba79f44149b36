"""The numbers of a `Machine`, measured here: all workers of this machine compute at once, and exchange messages in pairs.

    convolutions, products    of medium size, forward and backward, in float32 and float64; the median of several repeats
    short rows                a convolution with as many operations, but rows of 8 columns
    unrolled windows          a small convolution of one sample, which torch computes without oneDNN
    memory bandwidth          a sum of two large tensors
    an operator               a step of a small distributed model on tiny tensors, divided by the operators in its plan
    messages                  exchanges of 8 bytes and of 4 MiB with one neighbour, and of 8 bytes with three
    sums                      of 8 bytes and of 4 MiB over all workers

Only workers of one machine are measured: links between nodes are assumed to be as fast, until the file is edited.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from math import ceil, log2
from pathlib import Path
from statistics import median

import torch

from ..comm.launching import find
from ..comm.launching.cores import cores
from ..comm.launching.launch import launch
from ..costs.machine import Link, Machine
from ..errors import PartitionError
from ..models import distribute
from ..partition import world
from .plan import plan

REPEATS = 7
SMALL, LARGE = 8, 1 << 22
WIDE, NARROW = 96, 8
"""Columns of the measured convolutions."""
OPERATIONS = 2 * 16
"""Per element of the unrolled windows."""
DTYPES = (torch.float32, torch.float64)
Measured = dict[str, float]


def calibrated(workers: int | None = None, transport: str = "auto") -> Machine:
    """Measure this machine with `workers` workers, two at least; by default one per core."""
    count = max(2, cores()) if workers is None else workers
    if count < 2:
        raise PartitionError(
            f"calibrate: `workers` (={workers}) must be 2 at least: they measure how fast messages between them are."
        )
    found = launch(measure, workers=count, transport=transport, timeout=600.0)
    worst = {name: max(each[name] for each in found) for name in found[0]}  # seconds, of the slowest worker
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    flops = {kind: {name: 1 / worst[f"{kind} {name}"] for name in names} for kind in ("conv", "matmul")}
    columns = _row_columns(worst["narrow float32"] / worst["conv float32"])
    flops["conv"] = {name: rate * (1 + columns / WIDE) for name, rate in flops["conv"].items()}
    latency = worst["message"]
    steps = 2 * ceil(log2(count))
    link = Link(
        latency,
        1 / worst["byte"],
        max(0.0, worst["exchange"] - latency),
        max(1e-7, worst["sum"]) / steps,
        1 / worst["byte of a sum"],
    )
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
        row_columns=columns,
        unroll_seconds=max(0.0, worst["unrolled"] - OPERATIONS / flops["matmul"]["float32"]),
    )


def _row_columns(slower: float) -> float:
    """How many extra columns each row costs, if rows of `NARROW` columns take `slower` times as long as rows of `WIDE`."""
    slower = min(max(1.0, slower), 0.5 * WIDE / NARROW)
    return (slower - 1) / (1 / NARROW - slower / WIDE)


def measure() -> Measured:
    """Runs on every worker at the same time: seconds per operation, per byte and per call, by name."""
    found: Measured = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        found[f"conv {name}"] = _conv(dtype, 96, WIDE)
        found[f"matmul {name}"] = _matmul(dtype)
    found["narrow float32"] = _conv(torch.float32, 96 * WIDE // NARROW, NARROW)
    found["unrolled"] = _unrolled()
    large = torch.ones(1 << 23)
    out = torch.empty_like(large)
    found["memory byte"] = _timed(lambda: torch.add(large, large, out=out)) / (2 * large.nbytes)
    found["call"] = _call()
    transport = find.current()
    found["exchange"] = _exchange(SMALL, 50)
    found["byte"] = max(1e-13, (_exchange(LARGE, 5) - found["exchange"]) / LARGE)
    found["message"] = found["exchange"]
    if transport.size % 4 == 0:
        found["message"] = max(1e-7, (_exchange(SMALL, 50, 3) - found["exchange"]) / 2)
    small, many = torch.ones(SMALL // 4), torch.ones(LARGE // 4)
    found["sum"] = _timed(lambda: [transport.all_sum(small, transport.everyone) for _ in range(20)]) / 20
    sent = 2 * LARGE * (transport.size - 1) / transport.size
    whole = _timed(lambda: transport.all_sum(many, transport.everyone))
    found["byte of a sum"] = max(1e-13, (whole - found["sum"]) / max(1.0, sent))
    return found


def _conv(dtype: torch.dtype, rows: int, columns: int) -> float:
    """Seconds per operation of a convolution, forward and backward."""
    x = torch.ones(1, 16, rows, columns, dtype=dtype, requires_grad=True)
    weight = torch.ones(16, 16, 3, 3, dtype=dtype, requires_grad=True)
    operations = 3 * 2 * 16 * 16 * 9 * rows * columns

    def step() -> None:
        y = torch.nn.functional.conv2d(x, weight, padding=1)
        torch.autograd.grad(y, (x, weight), y)

    return _timed(step) / operations


def _unrolled() -> float:
    """Seconds per element of the windows that torch unrolls to convolve, forward and backward, products included."""
    x, weight = torch.ones(1, 16, 12, 12, 12), torch.ones(16, 16, 3, 3, 3)
    arguments = (1,) * 3, (1,) * 3, (1,) * 3, False, (0,) * 3, 1

    def step() -> None:
        y = torch.convolution(x, weight, None, *arguments)
        torch.ops.aten.convolution_backward.default(y, x, weight, None, *arguments, [True, True, False])

    return _timed(step) / (3 * 16 * 27 * 12**3)


def _call() -> float:
    """Seconds per operator, as a plan counts them, with hardly any work in it: autograd and Python included."""
    transport = find.current()
    P_x = world(transport).create_partition_inclusive([transport.rank]).create_cartesian_topology_partition([1] * 4)
    parts = [part for _ in range(3) for part in (torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.BatchNorm2d(2))]
    torch.manual_seed(0)
    model, shape = torch.nn.Sequential(*parts, torch.nn.ReLU(), torch.nn.MaxPool2d(2)), (1, 2, 4, 4)
    calls = sum(work.calls for work in plan(model, [1] * 4, shape).records[0].work.values())
    placed, x = distribute(model, P_x), torch.ones(shape)

    def steps() -> None:
        for _ in range(10):
            y = placed(x)
            y.backward(torch.ones_like(y))

    return _timed(steps) / 10 / calls


def _matmul(dtype: torch.dtype) -> float:
    a = torch.ones(256, 256, dtype=dtype)
    return _timed(lambda: a @ a) / (2 * 256**3)


def _exchange(nbytes: int, repeats: int, peers: int = 1) -> float:
    """Seconds to send messages of this size to `peers` neighbours and receive as many, at the same time."""
    transport = find.current()
    others = [peer for peer in (transport.rank ^ i for i in range(1, peers + 1)) if peer < transport.size]
    sent = torch.ones(nbytes, dtype=torch.uint8)
    arrived = [(peer, torch.empty(nbytes, dtype=torch.uint8)) for peer in others]

    def swap() -> None:
        for _ in range(repeats):
            if others:  # a worker without a partner measures nothing
                transport.exchange([(peer, sent) for peer in others], arrived, "a calibration")

    return max(1e-7, _timed(swap) / repeats)


def _timed(call: Callable[[], object]) -> float:
    """The median time of a call that all workers begin together."""
    call()
    spent = []
    for _ in range(REPEATS):
        find.current().barrier()
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return median(spent)


def _memory() -> int:
    """Bytes of memory in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def write_calibration(path: Path, machine: Machine) -> None:
    """Write the machine as a TOML file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(machine.as_toml(), encoding="utf-8")
