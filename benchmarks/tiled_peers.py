"""`gridwise.tiled` on one CPU core beside what people use instead, within the memory that the other has taken.

    python benchmarks/tiled_peers.py [--rounds 2]

MONAI's sliding windows on a 3-D U-Net that is trained here for a moment, diffusers' tiling on an autoencoder, and lightstream's
forward and backward of a ResNet-18. The limit of ours is the memory that the peer was measured to take, as in tiled.py. Errors
are the largest differences from the plain call, over its largest value: of the output, and of the parameter whose gradient
differs most; seconds are those of the core, the least of the rounds, ours and the peer's in turn.

A peer that is not installed is left out; lightstream also needs lightning and torchvision, which ask for a torch of their own
(`pip install --no-deps`).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import gridwise
from tiled import MIB, Cost, Decode, declare_torchvision, in_a_process, measured, sd_autoencoder
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


@dataclass
class Way:
    """One of the ways to the same result; with parameters, its call leaves their gradients."""

    call: Call
    parameters: list[nn.Parameter] = field(default_factory=list)

    def cost(self) -> Cost:
        return measured(self.call, False, torch.empty(0), self.parameters)

    def found(self, result: Tensor) -> list[Tensor]:
        """The result, and the gradients of the last call."""
        return [result, *(p.grad for p in self.parameters if p.grad is not None)]


def compared(
    name: str, peer: str, plain: Way, others: Way, ours: Callable[[int], tuple[Way, Any]], rounds: int,
) -> list[str]:  # fmt: skip
    """A row: the peer, and ours within the memory that the peer takes."""
    whole = plain.cost()
    right = plain.found(whole.result)
    others.cost()  # once, to warm up
    theirs = others.cost()
    their_errors = errors(others.found(theirs.result), right)
    way, mine = fitting(ours, theirs.bytes)
    our_errors = errors(way.found(mine.result), right)
    a, b, c = theirs.seconds, mine.seconds, whole.seconds
    for _ in range(rounds):
        a, b, c = min(a, others.cost().seconds), min(b, way.cost().seconds), min(c, plain.cost().seconds)
    return [
        name, peer, f"{whole.bytes / MIB:,.0f}", f"{theirs.bytes / MIB:,.1f}", f"{mine.bytes / MIB:,.1f}",
        f"{c:.2f}", f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}", their_errors, our_errors,
    ]  # fmt: skip


def fitting(ours: Callable[[int], tuple[Way, Any]], limit: int) -> tuple[Way, Cost]:
    """Ours within a limit, or within the next that will do, and what it costs."""
    while True:
        way, plan = ours(limit)
        try:
            plan()
        except gridwise.errors.UnsupportedError:
            limit += limit // 4
        else:
            return way, way.cost()


def errors(found: list[Tensor], right: list[Tensor]) -> str:
    """The error of the output, and the largest of the gradients if there are any."""
    assert len(found) == len(right)
    each = [float((y - z).abs().max() / z.abs().max()) for y, z in zip(found, right, strict=True)]
    return ", ".join(f"{error:.0e}" for error in (each[0], *([max(each[1:])] if each[1:] else [])))


def monai_windows(overlap: float, rounds: int) -> list[str]:
    from monai.inferers import sliding_window_inference

    model, (x, y) = trained(), balls(96, 1)

    def windows() -> Tensor:
        found = sliding_window_inference(x, (32, 32, 32), 1, model, overlap=overlap, mode="gaussian")
        assert isinstance(found, Tensor)
        return found

    def ours(limit: int) -> tuple[Way, Any]:
        big = tiled(model, limit)
        return Way(lambda: big(x)), lambda: big.plan(x)

    with torch.no_grad():
        found = compared("3-D U-Net, 96^3", f"MONAI, 32^3, overlap {overlap}", Way(lambda: model(x)),
                         Way(windows), ours, rounds)  # fmt: skip
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

    def ours(limit: int) -> tuple[Way, Any]:
        big = tiled(model, limit)
        return Way(lambda: big(z)), lambda: big.plan(z)

    with torch.no_grad():
        return compared("SD-style decoder, to 512^2", "diffusers, latents 24^2", Way(lambda: model(z)),
                        Way(blended), ours, rounds)  # fmt: skip


def tiled(model: nn.Module, limit: int) -> Any:
    return gridwise.tiled(model, memory=limit, store=tempfile.gettempdir(), progress=False)


# lightstream


def lightstream(tile: int, rounds: int) -> list[str]:
    """Forward and backward of its ResNet-18 without the last block, the smallest that it offers.

    Its batch norms are frozen, as lightstream's own training does: it adds their gradients up where tiles overlap.
    """
    torch.manual_seed(0)
    model = resnet_of_lightstream()
    size = 1536
    x = torch.randn(1, 3, size, size)
    cotangent = torch.ones(1, 256, size // 16, size // 16)  # as in tiled.py: what torch.sum sends back
    streaming = streamed(copy.deepcopy(model), tile)

    def differentiated(run: Callable[[Tensor], Tensor]) -> Call:
        def call() -> Tensor:
            with torch.enable_grad():
                y = run(x)
                y.backward(cotangent)
            return y.detach()

        return call

    def stream() -> Tensor:
        y = streaming(x)
        with torch.enable_grad():
            streaming.backward(x, cotangent)
        return y

    def ours(limit: int) -> tuple[Way, Any]:
        big = tiled(model, limit)
        return Way(differentiated(big), trained_in(model)), lambda: big.plan(x, backward=True)

    warnings.filterwarnings("ignore", "CUDA is not available")  # it asks for CUDA's autocast wherever it runs
    plain, theirs = Way(differentiated(model), trained_in(model)), Way(stream, trained_in(streaming.stream_module))
    rounds = max(1, rounds - 1)  # long calls, which vary less
    return compared(f"ResNet-18, {size}^2, f+b", f"lightstream, {tile}^2", plain, theirs, ours, rounds)


def resnet_of_lightstream() -> nn.Module:
    declare_torchvision()
    from lightstream.core.utils import freeze_normalization_layers
    from lightstream.models.resnet.resnet import split_resnet
    from torchvision.models import resnet18

    model = split_resnet(resnet18(weights=None), remove_last_block=True).eval()
    freeze_normalization_layers(model)
    return model


def streamed(model: nn.Module, tile: int) -> Any:
    """The model by lightstream's tiles, on the CPU."""
    from lightstream.core.constructor import StreamingConstructor

    kept = {"add_keep_modules": [nn.BatchNorm2d], "normalize_on_gpu": False}
    constructor = StreamingConstructor(model, tile, verbose=False, deterministic=True, **kept)
    constructor.statistics_on_cpu = False  # which means: on the model's device; true moves the model to CUDA afterwards
    with contextlib.redirect_stdout(io.StringIO()):
        return constructor.prepare_streaming_model()


def trained_in(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title="MiB, and seconds of one core; f+b: forward and backward, errors of both", padding=(0, 0))
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
    measures = (
        (monai_windows, 0.25),
        (monai_windows, 0.5),
        (diffusers_tiling,),
        (lightstream, 768),
        (lightstream, 1024),
    )
    for measure, *args in measures:
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
