"""What lower precision costs TAGI in accuracy and gains in speed: float32, and TF32 on a GPU, against float64.

    python benchmarks/tagi_precision.py [--device cuda]

FNN 784-1024-1024-11, batch 256, one step and ten steps from the same start on the same data. Errors are relative: the
root mean square of the difference from float64 over the root mean square of the float64 values, for the predicted mean
and variance after the steps, and for the variances of all weights.
"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console
from rich.table import Table

import gridwise.tagi.nn as nn
from gridwise.tagi.nn import OutputUpdater, Sequential

BATCH, WIDTH = 256, 1024


def network() -> Sequential:
    return Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 11))


def trained(steps: int, device: str, dtype: torch.dtype, tf32: bool) -> tuple[list[torch.Tensor], float]:
    """Predicted mean and variance and the weights' variances after training, and milliseconds per step."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.manual_seed(0)
    net = network().to(device=device, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(BATCH, 784, generator=generator, dtype=torch.float64).to(device, dtype)
    y = torch.randn(BATCH, 11, generator=generator, dtype=torch.float64).to(device, dtype)
    noise, updater = torch.full_like(y, 0.25), OutputUpdater(device)
    spent = []
    for _ in range(steps):
        start = time.perf_counter()
        net(x)
        updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
        net.backward()
        net.step()
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    mean, variance = net(x)
    spread = torch.cat([value.flatten() for name, value in net.state_dict().items() if name.endswith("var_w")])
    return [t.double().cpu() for t in (mean, variance, spread)], 1e3 * min(spent)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args(arguments).device
    cases = {"float32": False} | ({"TF32 products": True} if device == "cuda" else {})
    table = Table(
        "precision", "steps", "ms a step", "error of the mean", "of the variance", "of the weights' variances"
    )
    for steps in (1, 10):
        exact, _ = trained(steps, device, torch.float64, False)
        for name, tf32 in cases.items():
            found, ms = trained(steps, device, torch.float32, tf32)
            errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
            table.add_row(name, str(steps), f"{ms:.2f}", *(f"{error:.1e}" for error in errors))
    table.title = f"FNN 784-{WIDTH}-{WIDTH}-11, batch {BATCH}, {device}, against float64"
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
