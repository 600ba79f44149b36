"""`gridwise.tiled` on one CPU core beside what people use instead, within the memory that the other has taken.

    python benchmarks/tiled_peers.py [--rounds 2]

MONAI's sliding windows on a 3-D U-Net that is trained here for a moment, and diffusers' tiling on an autoencoder. The limit of
ours is the memory that the peer was measured to take, as in tiled.py. Errors are the largest differences from the plain
call, over its largest value; seconds are those of the core, the least of the rounds, ours and the peer's in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import gridwise
from tiled import MIB, Cost, Decode, in_a_process, measured, sd_autoencoder
from tiled_gpu import UNet3d

Call = Callable[[], Tensor]
STEPS = 6


def balls(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """A volume with bright balls and a drift of brightness, and which voxels are balls."""
    generator = torch.Generator().manual_seed(seed)
    axis = torch.linspace(0, 1, size)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
    centres, radii = torch.rand(12, 3, generator=generator), torch.rand(12, generator=generator) * 0.1 + 0.03
    inside = torch.zeros(size, size, size, dtype=torch.bool)
    for centre, radius in zip(centres, radii, strict=True):
        inside |= (grid - centre[:, None, None, None]).square().sum(0) < radius**2
    noise = torch.randn(inside.shape, generator=generator)
    return (inside * 0.7 + 0.8 * grid[0] + 0.3 * noise)[None, None], inside[None].long()


def trained() -> UNet3d:
    """A network that finds the balls in crops."""
    torch.manual_seed(0)
    model = UNet3d(12)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(STEPS):
        x, y = balls(32, 100 + step)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y, weight=torch.tensor([1.0, 4.0])).backward()
        optimiser.step()
    return model.eval()


def compared(
    name: str, peer: str, plain: Call, others: Call, ours: Callable[[int], tuple[Call, Any]], rounds: int,
) -> list[str]:  # fmt: skip
    """A row: the peer, and ours within the memory that the peer takes."""

    def cost(call: Call) -> Cost:
        return measured(call, False, torch.empty(0), [])

    whole = cost(plain)
    cost(others)
    theirs = cost(others)
    limit = theirs.bytes
    while True:
        call, planned = ours(limit)
        try:
            planned()
            mine = cost(call)
            break
        except gridwise.errors.UnsupportedError:
            limit += limit // 4
    a, b, c = theirs.seconds, mine.seconds, whole.seconds
    for _ in range(rounds):
        a, b, c = min(a, cost(others).seconds), min(b, cost(call).seconds), min(c, cost(plain).seconds)

    def error(y: Tensor) -> float:
        return float((y - whole.result).abs().max() / whole.result.abs().max())

    return [
        name, peer, f"{whole.bytes / MIB:,.0f}", f"{theirs.bytes / MIB:,.1f}", f"{mine.bytes / MIB:,.1f}",
        f"{c:.2f}", f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}", f"{error(theirs.result):.0e}", f"{error(mine.result):.0e}",
    ]  # fmt: skip


def monai_windows(overlap: float, rounds: int) -> list[str]:
    from monai.inferers import sliding_window_inference

    model, (x, y) = trained(), balls(96, 1)

    def windows() -> Tensor:
        found = sliding_window_inference(x, (32, 32, 32), 1, model, overlap=overlap, mode="gaussian")
        assert isinstance(found, Tensor)
        return found

    def ours(limit: int) -> tuple[Call, Any]:
        big = gridwise.tiled(model, memory=limit, store="/tmp", progress=False)
        return lambda: big(x), lambda: big.plan(x)

    with torch.no_grad():
        found = compared("3-D U-Net (96^3), windows of 32^3", f"MONAI, overlap {overlap}", lambda: model(x), windows,
                         ours, rounds)  # fmt: skip
        labels = [call().argmax(1) for call in (lambda: model(x), windows)]
    print(f"labels: whole {_dice(labels[0], y):.3f}, windows {_dice(labels[1], y):.3f} Dice", file=sys.stderr)
    return found


def _dice(a: Tensor, b: Tensor) -> float:
    return float(2 * (a * b).sum() / (a.sum() + b.sum()))


def diffusers_tiling(rounds: int) -> list[str]:
    torch.manual_seed(0)
    vae: Any = sd_autoencoder()
    vae.tile_latent_min_size, vae.tile_sample_min_size = 24, 192
    model, z = Decode(vae), torch.randn(1, 4, 64, 64)

    def blended() -> Tensor:
        vae.enable_tiling()
        try:
            return model(z)
        finally:
            vae.disable_tiling()

    def ours(limit: int) -> tuple[Call, Any]:
        big = gridwise.tiled(model, memory=limit, store="/tmp", progress=False)
        return lambda: big(z), lambda: big.plan(z)

    with torch.no_grad():
        return compared(
            "SD-style decoder, 64^2 to 512^2", "diffusers, 24^2 latents", lambda: model(z), blended, ours, rounds
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title="MiB, and seconds of one core", padding=(0, 0))
    columns = (
        "",
        "peer",
        "plain MiB",
        "peer MiB",
        "our MiB",
        "plain s",
        "peer s",
        "our s",
        "ours/peer",
        "its error",
        "our error",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "peer") else "right")
    for measure, *args in ((monai_windows, 0.25), (monai_windows, 0.5), (diffusers_tiling,)):
        found = in_a_process(measure, *args, options.rounds)
        if isinstance(found, ModuleNotFoundError):
            table.add_row(measure.__name__.replace("_", " "), f"not measured: {found.name} is not installed")
        elif isinstance(found, Exception):
            raise found
        else:
            table.add_row(*found)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
