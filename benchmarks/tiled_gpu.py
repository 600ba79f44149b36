"""`gridwise.tiled` on a GPU: time and the allocator's peak beside the plain call in the same run.

    python benchmarks/tiled_gpu.py [--rounds 5]

The limit is an eighth of what the plain call needs beside its parameters, its input and its result; the input lies in the
memory of the host, as volumes do. Times are medians; every sample ends with the device idle. The plain call's time
includes moving the input to the device and the result back.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import gridwise
from layers_norm import UNet
from run import NOTHING_HERE

MIB = 2**20


class UNet3d(nn.Module):
    """Two levels, instance norms, a skip connection."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Sequential:
            parts = [part for n in (a, b) for part in (nn.Conv3d(n, b, 3, padding=1), nn.InstanceNorm3d(b), nn.SiLU())]
            return nn.Sequential(*parts)

        self.down, self.middle, self.up = double(1, width), double(width, 2 * width), double(2 * width, width)
        self.lift, self.last = nn.ConvTranspose3d(2 * width, width, 2, stride=2), nn.Conv3d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.last(self.up(torch.cat([x, self.lift(self.middle(F.max_pool3d(x, 2)))], 1)))


class Decoder(nn.Module):
    """Residual blocks with group norms, three doublings: as in the autoencoders of latent diffusion."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
                nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(4)
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        x = self.first(z)
        for i, block in enumerate(self.blocks):
            x = x + block(x)
            x = F.interpolate(x, scale_factor=2.0) if i < 3 else x
        return self.last(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3-D U-Net, instance norm, (1,1,256,256,256)": (UNet3d, (1, 1, 256, 256, 256)),
    "decoder, group norm, (1,4,256,256) to 2048^2": (Decoder, (1, 4, 256, 256)),
    "2-D U-Net, batch norm, (1,3,2048,2048)": (UNet, (1, 3, 2048, 2048)),
}


def sampled(call: Callable[[], Tensor], rounds: int) -> tuple[float, int, Tensor]:
    """Seconds, bytes on top of what is allocated, and the result."""
    y = call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, times = torch.cuda.memory_allocated(), []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(rounds):
        start = time.perf_counter()
        y = call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times), torch.cuda.max_memory_allocated() - before, y


def row(name: str, backward: bool, rounds: int) -> list[str]:
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model = build().cuda()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    x = torch.randn(shape).pin_memory()

    def step(f: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
        with torch.set_grad_enabled(backward):
            y = f(given)
        if backward:
            y.backward(torch.ones((), device=y.device).expand(y.shape))
        return y.detach().cpu()

    plain, need, expected = sampled(lambda: step(model, x.cuda()), rounds)
    limit = need // 8
    big = gridwise.tiled(model, memory=limit, progress=False)
    planned = big.plan(shape, backward=backward)
    ours, grown, y = sampled(lambda: step(big, x), rounds)
    error = ((y - expected).abs().max() / expected.abs().max()).item()
    return [
        name, "forward + backward" if backward else "forward", f"{1e3 * plain:.0f}", f"{1e3 * ours:.0f}",
        f"{ours / plain:.2f}", f"{need / MIB:,.0f}", f"{limit / MIB:,.0f}", f"{planned.peak / MIB:,.0f}",
        f"{grown / MIB:,.0f}", f"{planned.tiles}", f"{error:.0e}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here.")
        sys.exit(NOTHING_HERE)
    table = Table(title="tiled beside plain calls on one GPU, float32; MiB beside parameters and their gradients")
    columns = ["model", "", "plain ms", "tiled ms", "ratio", "plain", "limit", "planned", "measured", "tiles", "error"]
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "") else "right")
    for name in MODELS:
        for backward in (False, True):
            try:
                table.add_row(*row(name, backward, options.rounds))
            except gridwise.errors.GridwiseError as error:
                table.add_row(name, "forward + backward" if backward else "forward", str(error).splitlines()[0])
            torch.cuda.empty_cache()
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
