"""Deferred initialisation against eager construction and the meta device, in the same run.

    python benchmarks/deferred_init.py            1.2 billion parameters
    python benchmarks/deferred_init.py --small    60 million

Every row is a fresh process that does one thing; the best CPU time of `--repeats` processes counts. Peak memory is the
process's peak minus what it held before the task (Linux). The warm rows repeat the construction in one process, because
the first use of the meta device imports much of torch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
from gridwise.deferred_init import deferred_init, materialize_module
from gridwise.deferred_init.random.streams import DrawCounter

GIB = 2**30
SIZES = {"small": (8000, 512, 14), "full": (32000, 2048, 22)}  # vocabulary, width, layers


class Model(nn.Module):
    """Transformer encoder layers, and an embedding tied to the head."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 16, 4 * width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight


def on_meta(size: tuple[int, int, int]) -> nn.Module:
    with torch.device("meta"):
        return Model(*size)


def eighth(dim: int):
    def layout(name: str, shape: torch.Size) -> tuple[slice, ...]:
        n = shape[dim]
        return (slice(None),) * (dim % len(shape)) + (slice(n * 3 // 8, n * 4 // 8),)

    return layout


def measure(task: str, size: tuple[int, int, int]) -> dict[str, float]:
    """CPU seconds of a task, and the bytes it adds to this process's peak memory."""
    advance = 0.0
    settle = DrawCounter.settle

    def timed_settle(ledger: DrawCounter) -> None:
        nonlocal advance
        begun = time.process_time()
        settle(ledger)
        advance += time.process_time() - begun

    DrawCounter.settle = timed_settle  # type: ignore[method-assign]
    torch.manual_seed(0)
    if task.startswith("make"):
        model = deferred_init(Model, *size)
    base = _now()
    begun = time.process_time()
    if task == "eager":
        model = Model(*size)
    elif task == "meta":
        model = on_meta(size)
    elif task == "record":
        model = deferred_init(Model, *size)
    elif task == "make all":
        materialize_module(model)
    elif task == "make 1/8 of dim 0":
        materialize_module(model, layout=eighth(0))
    elif task == "make 1/8 of the last dim":
        materialize_module(model, layout=eighth(-1))
    elif task in ("meta, warm", "record, warm"):
        build = (lambda: on_meta(size)) if task.startswith("meta") else (lambda: deferred_init(Model, *size))
        build()
        times = []
        for _ in range(15):
            advance, begun = 0.0, time.process_time()
            model = build()
            times.append((time.process_time() - begun - advance, advance))
        return {"cpu": min(times)[0], "advance": min(times)[1], "peak": _peak() - base}
    cpu = time.process_time() - begun
    assert model is not None
    return {"cpu": cpu - advance, "advance": advance, "peak": _peak() - base}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def best(task: str, size: str, repeats: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--size", size, "--task", task]
    idle = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # threads that wait for work by spinning are no work
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, env=idle).stdout) for _ in range(repeats)
    ]
    return min(runs, key=lambda run: run["cpu"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="60 million parameters instead of 1.2 billion")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(measure(options.task, SIZES[options.size])))
        return
    size = "small" if options.small else "full"
    parameters = sum(p.numel() for p in on_meta(SIZES[size]).parameters())
    model_bytes = 4 * parameters
    print(f"{parameters / 1e6:,.0f} million parameters, {model_bytes / GIB:.2f} GiB, torch {torch.__version__}")
    rows = [
        ("eager", "eager", None),
        ("meta", "eager", None),
        ("record", "meta", 1.3),
        ("meta, warm", "eager", None),
        ("record, warm", "meta, warm", 1.3),
        ("make all", "eager", 1.05),
        ("make 1/8 of dim 0", "eager", 0.7),
        ("make 1/8 of the last dim", "eager", None),
    ]
    limits = {"record": 0.1 * GIB} | dict.fromkeys(
        ("make 1/8 of dim 0", "make 1/8 of the last dim"), model_bytes / 8 + 128 * 2**20
    )
    done: dict[str, dict[str, float]] = {}
    print(f"{'':26}{'CPU s':>9}{'+ advance':>11}{'ratio':>8}{'of':>13}{'target':>8}{'peak GiB':>10}{'limit':>8}")
    for task, against, target in rows:
        done[task] = run = best(task, size, options.repeats)
        ratio = run["cpu"] / done[against]["cpu"]
        limit = f"{limits[task] / GIB:8.2f}" if task in limits else ""
        print(
            f"{task:26}{run['cpu']:9.4f}{run['advance']:11.4f}{ratio:8.2f}{against:>13}{target or '':>8}"
            f"{run['peak'] / GIB:10.3f}{limit}",
            flush=True,
        )


if __name__ == "__main__":
    main()
