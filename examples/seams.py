"""Decode a picture that is large for its decoder: by tiles that are blended, by `gridwise.tiled`, and whole.

    python examples/seams.py

Group norms and attention see the whole picture. A tile that is decoded on its own has statistics of its own, and so other
tones; blending smears the seams, and does not remove them. The picture: out/seams.png.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import gridwise
from gridwise.memory_sizes import trim
from sunset import FACTOR, encoded, scene, trained_decoder
from watched import MIB, watched

SIZE, TILE, OVERLAP, MEMORY = 768, 32, 8, "48MiB"


def blended(model: nn.Module, latent: Tensor) -> Tensor:
    """Overlapping tiles, decoded on their own and blended linearly, as `enable_tiling()` of diffusers does."""
    ramp = (torch.arange(TILE * FACTOR) + 1).div(OVERLAP * FACTOR).clamp(max=1)
    result = torch.zeros(1, 3, *(FACTOR * n for n in latent.shape[2:]))
    for i in range(0, latent.shape[2], TILE - OVERLAP):
        for j in range(0, latent.shape[3], TILE - OVERLAP):
            y = model(latent[:, :, i : i + TILE, j : j + TILE])
            place = result[:, :, FACTOR * i : FACTOR * (i + TILE), FACTOR * j : FACTOR * (j + TILE)]
            rows, columns = (ramp[:n] if at else torch.ones(n) for n, at in zip(y.shape[2:], (i, j), strict=True))
            place.copy_(torch.lerp(place, y, rows[:, None] * columns))
    return result


def measured(way: Callable[[Tensor], Tensor], latent: Tensor) -> tuple[Tensor, str]:
    """The picture, and what it cost: memory beside the picture itself, and time."""
    with torch.no_grad():
        way(latent)  # once, to record and to warm up
        trim()  # give back what that has left
        y, cost = watched(way, latent)
    return y, f"{cost.grown - y.nbytes / MIB:.0f} MiB, {cost.seconds:.1f} s"


def draw(pictures: dict[str, Tensor], costs: dict[str, str], path: Path) -> None:
    figure = Figure(figsize=(11, 7.7), layout="compressed")
    axes = figure.subplots(2, 3)
    for (above, below), (name, y) in zip(axes.T, pictures.items(), strict=True):
        error = (y - pictures["whole"])[0].abs().mean(0) / 2
        above.imshow(y[0].permute(1, 2, 0).add(1).div(2).clamp(0, 1))
        above.set_title(f"{name}: {costs[name]}")
        shown = below.imshow(error, cmap="inferno", vmin=0, vmax=0.1)
        below.set_title(f"difference from whole: {error.max():.0e}" if error.any() else "no difference")
        above.axis("off")
        below.axis("off")
    figure.colorbar(shown, ax=axes[1], shrink=0.9, label="of the range of colours")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=80, bbox_inches="tight")


def main() -> float:
    """The largest difference between Gridwise and whole."""
    torch.set_num_threads(1)
    model, latent = trained_decoder(), encoded(scene(SIZE))
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "tiles, blended": lambda z: blended(model, z),
        "gridwise.tiled": gridwise.tiled(model, memory=MEMORY),
        "whole": model,
    }
    pictures, costs = {}, {}
    for name, way in ways.items():
        pictures[name], costs[name] = measured(way, latent)
    draw(pictures, costs, Path("out/seams.png"))
    for name, y in pictures.items():
        error = float((y - pictures["whole"]).abs().max())
        print(f"{name:15} {costs[name]:15}  differs from whole by up to {error:.1g}")
    print("The three pictures: out/seams.png")
    return float((pictures["gridwise.tiled"] - pictures["whole"]).abs().max())


if __name__ == "__main__":
    sys.exit(0 if main() < 1e-4 else "not as it should be")
