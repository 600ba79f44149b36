"""A 3-D U-Net on a volume on a disk, in a process that may have 1 GiB. The model alone would need more than 8 GiB.

    python examples/larger_than_memory.py                 some minutes, and 5 GB of disk under out/
    python examples/larger_than_memory.py --size 64       seconds

It reads Zarr and writes Zarr, and its instance norms see the whole volume. Each run is a process to which the kernel gives
so much data and no more (RLIMIT_DATA). Runs with other limits and tiles agree, and on a smaller volume the plain call does.
What Zarr holds while it reads and writes is in the figures too, beside the `memory` that `tiled` may use.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import zarr
from torch import Tensor, nn

import gridwise
from vae_decode import Live
from watched import MIB, watched

GIB, CHUNK = 2**30, 64


def block(inputs: int, outputs: int) -> nn.Sequential:
    norm = nn.InstanceNorm3d(outputs, affine=True)
    return nn.Sequential(nn.Conv3d(inputs, outputs, 3, padding=1), norm, nn.LeakyReLU(0.01))


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.ModuleList([block(1, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.head = nn.Conv3d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.down[0](x)]
        for down in self.down[1:]:
            kept.append(down(nn.functional.max_pool3d(kept[-1], 2)))
        x = kept.pop()
        for up in self.up:
            x = up(torch.cat((nn.functional.interpolate(x, scale_factor=2), kept.pop()), 1))
        return self.head(x)


def slab(first: int, rows: int, size: int) -> np.ndarray:
    """Rows of the volume: shells and noise, in the integers of a scanner; (batch, channel, depth, height, width)."""
    z, y, x = np.ogrid[first : first + rows, :size, :size]
    shells = np.cos(np.sqrt((z - size / 2) ** 2 + (y - size / 3) ** 2 + (x - size / 2) ** 2) / 7)
    return (1000 * shells + np.random.default_rng(first).normal(0, 50, shells.shape)).astype(np.int16)[None, None]


def new_array(path: Path, channels: int, size: int, dtype: str) -> zarr.Array:
    chunks = (1, channels) + (min(CHUNK, size),) * 3
    return zarr.create_array(path, shape=(1, channels, size, size, size), chunks=chunks, dtype=dtype)


def run(folder: Path, name: str, memory: int, limit: int) -> None:
    """In a process of its own: from the volume's array to an array of that name."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(1)
    volume = zarr.open_array(folder / "volume.zarr", mode="r")
    result = new_array(folder / f"{name}.zarr", 2, volume.shape[-1], "float32")
    big = gridwise.tiled(UNet(), memory, store=folder)
    with torch.no_grad():
        plan = big.plan(volume.shape)
        _, cost = watched(big, volume, out=result)
    print(
        f"memory={memory // MIB} MiB: {plan.tiles} tiles, {plan.stored_peak / GIB:.1f} GiB in files, {cost.seconds:.0f} s"
    )
    print(f"  memory grew by {cost.grown:.0f} MiB, to {cost.peak:.0f} MiB; the kernel allows {limit // MIB} MiB")


def main(size: int) -> tuple[float, float]:
    """The largest difference from the plain call, and between the two runs."""
    with torch.no_grad(), Live() as live:  # tensors without data
        UNet().to("meta")(torch.empty(1, 1, size, size, size, device="meta"))
    print(
        f"a volume of {size} x {size} x {size}: the plain call holds {live.peak / GIB:.2f} GiB of tensors at its peak"
    )
    x, small = torch.from_numpy(slab(0, 48, 48)).float(), UNet()
    with torch.no_grad():
        from_plain = float((gridwise.tiled(small, tile=20)(x) - small(x)).abs().max())
    print(f"a volume of 48 x 48 x 48: tiles differ from the plain call by up to {from_plain:.1g}")
    Path("out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="out") as at:
        folder = Path(at)
        volume = new_array(folder / "volume.zarr", 1, size, "int16")
        for first in range(0, size, CHUNK):
            volume[:, :, first : first + CHUNK] = slab(first, min(CHUNK, size - first), size)
        memory = max(12 * MIB, live.peak // 26)
        for name, *given in (("first", memory, GIB), ("second", memory * 2 // 3, GIB * 7 // 8)):
            subprocess.run([sys.executable, __file__, "--run", at, name, *map(str, given)], check=True)
        first, second = (zarr.open_array(folder / f"{name}.zarr", mode="r") for name in ("first", "second"))
        rows = [slice(i, i + CHUNK) for i in range(0, size, CHUNK)]
        between = max(float(np.abs(first[:, :, each] - second[:, :, each]).max()) for each in rows)
    print(f"the two results differ by up to {between:.1g}")
    return from_plain, between


if __name__ == "__main__":
    asked = sys.argv[1:]
    if asked[:1] == ["--run"]:
        run(Path(asked[1]), asked[2], *map(int, asked[3:]))
    else:
        sys.exit(0 if max(main(int(asked[-1]) if asked else 360)) < 1e-4 else "not as it should be")
