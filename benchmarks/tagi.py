"""Milliseconds of a TAGI training step, against the original, the sgemm peak and back-propagation.

    python benchmarks/tagi.py                         all networks, one thread; the small ones also compiled
    python benchmarks/tagi.py --compile               all of them also compiled (CPU) or captured (CUDA)
    python benchmarks/tagi.py --only fnn_small lstm   some of them
    python benchmarks/tagi.py --device cuda           on a GPU
    python benchmarks/tagi.py --original              beside pytagi, in turns, where it can be imported

For several workers see `tagi_workers.py`. Back-propagation uses the same torch layers in the same order, uncompiled, in
the same run.

Without `--original` there is no factor to pytagi: one to a time of another run would compare two machines. A step is
forward, observation of every output, backward, update; an `epoch` row is a step of many in one call. Times are the
smallest of the repetitions: CPU time with one thread (least disturbed by other work on the machine), wall time otherwise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import gridwise.tagi.nn as tagi_nn


def fnn(width: int) -> Callable[[Any], Any]:
    def build(nn: Any) -> Any:
        return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 11))

    return build


def fnn_of(*widths: int) -> Callable[[Any], Any]:
    def build(nn: Any) -> Any:
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    return build


def cnn(nn: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, padding=1, in_width=28, in_height=28),
        nn.ReLU(),
        nn.AvgPool2d(3, 2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.AvgPool2d(3, 2),
        nn.Linear(512, 100),
        nn.ReLU(),
        nn.Linear(100, 11),
    )


def resnet18(nn: Any) -> Any:
    def unit(cin: int, cout: int, kernel: int, stride: int, padding: int, kind: int) -> list[Any]:
        conv = nn.Conv2d(cin, cout, kernel, bias=False, stride=stride, padding=padding, padding_type=kind)
        return [conv, nn.MixtureReLU(), nn.BatchNorm2d(cout)]

    def block(cin: int, cout: int, stride: int) -> Any:
        main = nn.LayerBlock(*unit(cin, cout, 3, stride, 1, stride), *unit(cout, cout, 3, 1, 1, 1))
        return (
            nn.ResNetBlock(main, nn.LayerBlock(*unit(cin, cout, 2, 2, 0, 1))) if stride == 2 else nn.ResNetBlock(main)
        )

    first = nn.Conv2d(3, 64, 3, bias=False, padding=1, in_width=32, in_height=32)
    layers = [first, nn.MixtureReLU(), nn.BatchNorm2d(64)]
    for cin, cout in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [block(cin, cout, 1 if cin == cout else 2), block(cout, cout, 1)]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Linear(512, 11))


def lstm(nn: Any) -> Any:
    return nn.Sequential(nn.LSTM(1, 8, 5), nn.LSTM(8, 8, 5), nn.Linear(40, 1))


@dataclass
class Case:
    name: str
    build: Callable[[Any], Any]
    inputs: int
    outputs: int
    batch: int
    gflop: float = 0.0  # of the matrix products of one step
    repeat: int = 5
    compat: str | None = None
    original: int = 0  # repetitions of pytagi


CASES = [
    Case("fnn 1-50-1", fnn_of(1, 50, 1), 1, 1, 16, 0.0, 300, original=300),
    Case("fnn 8-50-50-1", fnn_of(8, 50, 50, 1), 8, 1, 32, 0.0, 300, original=100),
    Case("fnn 784-100-100-11", fnn_of(784, 100, 100, 11), 784, 11, 16, 0.016, 100, original=30),
    Case("fnn_small", fnn(128), 784, 11, 16, 0.02, 100, original=30),
    Case("fnn_4096", fnn(4096), 784, 11, 16, 4.18, original=2),
    Case("fnn_4096", fnn(4096), 784, 11, 128, 33.4, 3),
    Case("fnn_4096", fnn(4096), 784, 11, 1024, 267.0, 2),
    Case("cnn", cnn, 784, 11, 16, 0.268, 20, original=4),
    Case("cnn", cnn, 784, 11, 128, 2.14, 5, original=2),
    Case("resnet18", resnet18, 3072, 11, 2, 16.1, 3, original=1),
    Case("resnet18", resnet18, 3072, 11, 16, 129.0, 2),
    Case("lstm", lstm, 5, 1, 5, 0.0, 100, original=300),
    Case("lstm, no recurrence", lstm, 5, 1, 5, 0.0, 100, "cutagi", original=300),
]
SMALL = ("fnn 1-50-1", "fnn 8-50-50-1", "fnn 784-100-100-11", "fnn_small", "lstm", "lstm, no recurrence")
"""Networks whose step is mostly Python unless it is compiled."""
GPU_BATCHES = {
    "fnn_small": (16,),
    "fnn_4096": (16, 128, 1024),
    "cnn": (16, 128, 1024),
    "resnet18": (128,),
    "lstm": (5,),
}


def smallest_ms(step: Callable[[], Any], repeat: int, device: str) -> float:
    times = []
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(repeat):
        start = clock()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - start)
    return 1e3 * min(times)


def peak_gflops(device: str) -> float:
    n = 2048 if device == "cpu" else 8192
    a = torch.randn(n, n, device=device)
    return 2e-9 * n**3 / (smallest_ms(lambda: a @ a, 5, device) / 1e3)


def ours(case: Case, batch: int, device: str, compile: bool) -> float:
    torch.manual_seed(0)
    net = case.build(tagi_nn).to(device)
    net.set_compat(case.compat)
    x = torch.randn(batch, case.inputs, device=device)
    y = torch.randn(batch, case.outputs, device=device)
    noise = torch.full_like(y, 0.1)
    step = tagi_nn.TrainStep(net, compile=compile)
    for _ in range(6 if compile else 2):
        step(x, y, noise)
    return smallest_ms(lambda: step(x, y, noise), case.repeat, device)


EPOCH = 200
"""Steps of an `epoch` row."""


def epoch(case: Case) -> float:
    """Milliseconds of a step, of many in one call."""
    torch.manual_seed(0)
    net = case.build(tagi_nn)
    x, y = torch.randn(EPOCH * case.batch, case.inputs), torch.randn(EPOCH * case.batch, case.outputs)
    step = tagi_nn.TrainStep(net, compile=True)
    step.epoch(x, y, 0.1, batch_size=case.batch)
    return smallest_ms(lambda: step.epoch(x, y, 0.1, batch_size=case.batch), 5, "cpu") / EPOCH


def the_original(case: Case, batch: int) -> float:
    import pytagi.nn as nn

    net = case.build(nn)
    net.set_threads(torch.get_num_threads())
    updater = nn.OutputUpdater("cpu")
    rng = np.random.default_rng(0)
    x = rng.standard_normal(batch * case.inputs).astype(np.float32)
    y = rng.standard_normal(batch * case.outputs).astype(np.float32)
    noise = np.full_like(y, 0.1)

    def step() -> None:
        net(x)
        updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
        net.backward()
        net.step()

    step()
    return smallest_ms(step, case.original, "cpu")


class _Torch:
    """Torch layers under the same names, so that the builders above can make a network for back-propagation."""

    Linear, ReLU, MixtureReLU = torch.nn.Linear, torch.nn.ReLU, torch.nn.ReLU
    BatchNorm2d, AvgPool2d, LayerBlock = torch.nn.BatchNorm2d, torch.nn.AvgPool2d, torch.nn.Sequential

    @staticmethod
    def Conv2d(cin: int, cout: int, kernel: int, **options: Any) -> torch.nn.Module:
        kind, p = options.get("padding_type", 1), options.get("padding", 0)
        shared = {"bias": options.get("bias", True), "stride": options.get("stride", 1)}
        if kind == 2:
            return torch.nn.Sequential(torch.nn.ZeroPad2d((0, p, 0, p)), torch.nn.Conv2d(cin, cout, kernel, **shared))
        return torch.nn.Conv2d(cin, cout, kernel, padding=p, **shared)

    class ResNetBlock(torch.nn.Module):
        def __init__(self, main: torch.nn.Module, shortcut: torch.nn.Module | None = None) -> None:
            super().__init__()
            self.main, self.shortcut = main, shortcut or torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.main(x) + self.shortcut(x)

    @staticmethod
    def Sequential(*layers: torch.nn.Module) -> torch.nn.Module:
        flattened: list[torch.nn.Module] = []
        for layer in layers:
            if isinstance(layer, torch.nn.Linear) and any(isinstance(m, torch.nn.AvgPool2d) for m in flattened[-1:]):
                flattened.append(torch.nn.Flatten())
            flattened.append(layer)
        return torch.nn.Sequential(*flattened)


def back_propagation(case: Case, batch: int, device: str) -> float | None:
    if case.name.startswith("lstm"):
        return None
    net = case.build(_Torch).to(device)
    shape = {784: (1, 28, 28), 3072: (3, 32, 32)}.get(case.inputs, (case.inputs,))
    flat = case.name.startswith("fnn")
    x = torch.randn(batch, case.inputs, device=device) if flat else torch.randn(batch, *shape, device=device)
    y = torch.randn(batch, case.outputs, device=device)
    optimiser = torch.optim.SGD(net.parameters(), 1e-3, fused=device == "cuda")

    def step() -> None:
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimiser.step()

    for _ in range(3):
        step()
    return smallest_ms(step, case.repeat, device)


def show(
    case: Case, batch: int, kind: str, ms: float, peak: float, original: float | None, torch_ms: float | None
) -> None:
    rate = f"{case.gflop * batch / case.batch / ms * 1e3 / peak:6.0%}" if case.gflop else "      "
    ratio = f"{original / ms:8.2f}x" if original else "        -"
    back = f"{ms / torch_ms:8.2f}x" if torch_ms else "        -"
    print(f"{case.name:22s} {batch:5d}  {kind:9s} {ms:10.4f} {rate} {ratio} {back}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--original", action="store_true")
    parser.add_argument("--only", nargs="*", help="names of networks")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    peak = peak_gflops(options.device)
    print(f"{options.device}, {options.threads} thread(s), sgemm peak {peak:.1f} GFLOP/s, torch {torch.__version__}")
    print(f"{'network':22s} {'batch':>5s}  {'':9s} {'ms':>10s} {'peak':>6s} {'pytagi':>9s} {'backprop':>9s}")
    seen = set()
    for case in CASES:
        if options.only and not any(case.name.startswith(name) for name in options.only):
            continue
        gpu = options.device == "cuda"
        if gpu and case.name in seen:
            continue
        seen.add(case.name)
        for batch in GPU_BATCHES.get(case.name, (case.batch,)) if gpu else (case.batch,):
            beside = options.original and bool(case.original) and not gpu
            torch_ms = back_propagation(case, batch, options.device)
            for compile in (False, True) if options.compile or case.name in SMALL else (False,):
                original = the_original(case, batch) if beside else None
                ms = ours(case, batch, options.device, compile)
                show(case, batch, "compiled" if compile else "eager", ms, peak, original, torch_ms)
                if compile and case.name.startswith("fnn ") and not gpu:
                    show(case, batch, "epoch", epoch(case), peak, original, torch_ms)


if __name__ == "__main__":
    main()
