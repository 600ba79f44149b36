"""Find bone in a scan of 160^3 voxels: by windows that are blended, by `gridwise.tiled` in bounded memory, and whole.

    python examples/volume_seams.py

The network is small, is trained here in seconds, and has instance norms. A window in which there is only air has a norm of
its own, which makes of faint noise what the network takes for bone; blending does not help. Draws out/volume_seams.png.
"""

import sys
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import gridwise
from gridwise.memory_sizes import trim
from watched import watched

SIZE, WINDOW, MEMORY = 160, 48, "96MiB"


def scan(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """What a scanner would give, and where bone is: a sponge in a ball, in air, with noise."""
    random, axis = torch.Generator().manual_seed(seed), torch.linspace(-1, 1, size)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=random))[0]
    place = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
    z, y, x = torch.einsum("ij,j...->i...", turn, place) * (size * torch.pi / 24)
    sponge = z.sin() * y.cos() + y.sin() * x.cos() + x.sin() * z.cos() > 0.4
    ball = (place - torch.tensor([0.0, -0.25, -0.3]).view(3, 1, 1, 1)).square().sum(0) < 0.4
    bone = (sponge & ball).float()[None, None]
    return bone + 0.35 * torch.randn(bone.shape, generator=random), bone


def convolved(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True), nn.ReLU())


class Net(nn.Module):
    """A U-Net of two levels; its output is the probability of bone."""

    def __init__(self) -> None:
        super().__init__()
        self.above, self.below = convolved(1, 8), nn.Sequential(convolved(8, 16), convolved(16, 16))
        self.last = nn.Sequential(convolved(24, 8), nn.Conv3d(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.above(x)
        below = self.below(nn.functional.avg_pool3d(x, 2))
        return self.last(torch.cat((x, nn.functional.interpolate(below, scale_factor=2)), 1)).sigmoid()


def trained(steps: int) -> nn.Module:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam((net := Net()).parameters(), lr=1e-2)
    for step in range(steps):
        x, bone = scan(WINDOW, seed=1 + step)  # there is bone in each
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy(net(x), bone).backward()
        optimizer.step()
    return net.eval()


def windows(net: nn.Module, x: Tensor) -> Tensor:
    """Windows that overlap by half, blended with Gaussian weights, as `sliding_window_inference` does."""
    bell = torch.exp(-0.5 * (torch.linspace(-1, 1, WINDOW) / 0.25).square())
    weight = (bell[:, None, None] * bell[:, None] * bell).clamp(min=1e-3)
    total, weights = torch.zeros_like(x), torch.zeros_like(x)
    starts = sorted({*range(0, x.shape[-1] - WINDOW, WINDOW // 2), x.shape[-1] - WINDOW})
    for i, j, k in torch.cartesian_prod(*[torch.tensor(starts)] * 3).tolist():
        at = (..., slice(i, i + WINDOW), slice(j, j + WINDOW), slice(k, k + WINDOW))
        total[at] += weight * net(x[at])
        weights[at] += weight
    return total / weights


def draw(pictures: dict[str, Tensor], titles: dict[str, str], path: Path) -> None:
    """Above a slice through the middle, below what a look through the volume shows (the mean along depth)."""
    figure = Figure(figsize=(13, 7.2), layout="compressed")
    axes = figure.subplots(2, len(pictures))
    for (above, below), (name, y) in zip(axes.T, pictures.items(), strict=True):
        colours, low, high = ("gray", -0.5, 1.5) if name == "the scan" else ("magma", 0, 1)
        above.imshow(y[0, 0, y.shape[2] // 2], colours, vmin=low, vmax=high, interpolation="nearest")
        below.imshow(y[0, 0].mean(0), colours, vmin=0, vmax=0.45, interpolation="nearest")
        above.set_title(f"{name}\n{titles[name]}", fontsize=11)
        _ = above.axis("off"), below.axis("off")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main(size: int = SIZE, steps: int = 60) -> float:
    """The largest difference between Gridwise and whole."""
    torch.set_num_threads(1)
    net, (x, bone) = trained(steps), scan(size, seed=0)
    ways = {
        "windows, blended": lambda x: windows(net, x),
        "gridwise.tiled": gridwise.tiled(net, memory=MEMORY),
        "whole": net,
    }
    pictures, titles = {"the scan": x}, {"the scan": f"{size} x {size} x {size} voxels"}
    for name, way in ways.items():
        trim()  # give back what has been left
        start = time.process_time()
        with torch.no_grad():
            pictures[name], cost = watched(way, x)
        seconds = time.process_time() - start
        found = (pictures[name] > 0.5).float()
        dice = float(2 * (found * bone).sum() / (found.sum() + bone.sum()))
        titles[name] = f"{cost.grown:.0f} MiB, {seconds:.1f} s, Dice {dice:.3f}"
    draw(pictures, titles, Path("out/volume_seams.png"))
    for name in ways:
        error = float((pictures[name] - pictures["whole"]).abs().max())
        print(f"{name:17} {titles[name]:32}  differs from whole by up to {error:.1g}")
    return float((pictures["gridwise.tiled"] - pictures["whole"]).abs().max())


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:])) < 1e-4 else "not as it should be")
