"""`gridwise.tiled` on one CPU core: memory, time and plans at 1/4, 1/8 and 1/16 of what the plain call needs.

    python benchmarks/tiled.py [--rounds 2] [--only unet]

What a call needs is the growth of the resident memory of a fresh process at its peak, as the kernel counts it, beside the
input, the result, parameters and all their gradients; arrays between stages ("store") lie in files, whose pages do not count.
Both are called once before, since at the first call torch makes and keeps kernels for new sizes. Times are seconds of one core,
the least of some rounds, at 1/8 plain and tiled calls in turn: other programs hardly change them.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gridwise
from gridwise.memory_sizes import map_blocks_from, trim
from tiled_gpu import UNet3d

MIB = 2**20
FRACTIONS = (4, 8, 16)
TIMED = 8
"""The fraction at which times are compared in several rounds."""
MAPPED, LARGEST_BY_DEFAULT = 1 << 17, 1 << 25
"""Blocks from this size on go back to the system when they are freed: where a plain call's memory is measured, and usually."""


def declare_torchvision() -> None:
    """Let torchvision be imported, if it is there, though its compiled operators may not load."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from zoo.compiled_ops import declare

    declare()


def vision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        declare_torchvision()
        import torchvision

        model = getattr(torchvision.models, name)(weights=None)
        return model.eval()

    return build


class Decode(nn.Module):
    """The decoder of an autoencoder of diffusers, as a model of one tensor."""

    def __init__(self, vae: nn.Module) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, z: Tensor) -> Tensor:
        return self.vae.decode(z).sample  # type: ignore[operator]


def sd_autoencoder() -> nn.Module:
    declare_torchvision()
    from diffusers import AutoencoderKL

    up = ("UpDecoderBlock2D",) * 4
    options = {"block_out_channels": (32, 64, 128, 128), "up_block_types": up, "layers_per_block": 1}
    down = ("DownEncoderBlock2D",) * 4
    return AutoencoderKL(down_block_types=down, latent_channels=4, norm_num_groups=16, **options).eval()


def wan_autoencoder() -> nn.Module:
    declare_torchvision()
    from diffusers import AutoencoderKLWan

    zeros, ones = [0.0] * 8, [1.0] * 8
    options = {"base_dim": 24, "z_dim": 8, "dim_mult": [1, 2, 4], "num_res_blocks": 1, "attn_scales": []}
    return AutoencoderKLWan(**options, temperal_downsample=[False, True], latents_mean=zeros, latents_std=ones).eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3-D U-Net": (UNet3d, (1, 1, 112, 112, 112)),
    "ResNet-50": (vision("resnet50"), (1, 3, 1024, 1024)),
    "Swin-T": (vision("swin_t"), (1, 3, 768, 768)),
    "ConvNeXt-T": (vision("convnext_tiny"), (1, 3, 768, 768)),
    "SD-style decoder": (lambda: Decode(sd_autoencoder()), (1, 4, 64, 64)),
    "Wan-style decoder": (lambda: Decode(wan_autoencoder()), (1, 8, 2, 48, 48)),
}


# One call


@dataclass
class Cost:
    """What a call cost: bytes on top of what was there and of what it leaves, and seconds of the core."""

    bytes: int
    seconds: float
    result: Tensor


def measured(call: Callable[[], Tensor], backward: bool, x: Tensor, parameters: list[nn.Parameter]) -> Cost:
    for tensor in (x, *parameters):
        tensor.grad = None
    gc.collect()
    trim()
    code, before, began = pages_of_files(), reset_peak(), time.process_time()
    with torch.set_grad_enabled(backward):
        y = call()
        if backward:
            y.backward(torch.ones((), device="cpu").expand(y.shape))
    seconds, grown = time.process_time() - began, peak() - before
    grown -= pages_of_files() - code  # kernels that ran for the first time
    kept = sum(t.nbytes for t in (y, x.grad, *(p.grad for p in parameters)) if t is not None)
    return Cost(grown - kept, seconds, y.detach())


def reset_peak() -> int:
    """Let the kernel forget the largest size of this process: its size now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak()


def peak() -> int:
    return _status("VmHWM")


def pages_of_files() -> int:
    return _status("RssFile")


def _status(name: str) -> int:
    return 1024 * int(re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[0])


def in_a_process(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns in a fresh copy of this process, whose memory nobody has used."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def body() -> None:
        try:
            theirs.send(function(*args))
        except Exception as error:
            theirs.send(error)

    process = context.Process(target=body)
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        found = RuntimeError("the process has died")
    process.join()
    return found


# Memory and time of models


def rows(name: str, backward: bool, rounds: int) -> None:
    """Print a line for each fraction; in a process of its own."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model = build()
    parameters = list(model.parameters())
    x = torch.randn(shape, requires_grad=backward)

    def plain() -> Cost:
        return measured(lambda: model(x), backward, x, parameters)

    plain()  # once, to warm up
    map_blocks_from(MAPPED)  # so that what is freed does not count
    need = plain()
    map_blocks_from(LARGEST_BY_DEFAULT)
    plain_seconds = min(plain().seconds for _ in range(2))
    for fraction in FRACTIONS:
        limit = need.bytes // fraction
        with torch.set_grad_enabled(backward):
            big, limit = fitting(model, limit, x, backward)
            plan = big.plan(x, backward=backward)
        measured(lambda: big(x), backward, x, parameters)  # noqa: B023  once, for kernels of these sizes
        best, ours = plain_seconds, measured(lambda: big(x), backward, x, parameters)  # noqa: B023
        least = ours.seconds
        for _ in range(rounds - 1 if fraction == TIMED else 0):
            best = min(best, plain().seconds)
            least = min(least, measured(lambda: big(x), backward, x, parameters).seconds)  # noqa: B023
        error = float((ours.result - need.result).abs().max() / need.result.abs().max())
        is_least = limit != need.bytes // fraction
        print(line((
            name, "f+b" if backward else "f", f"{need.bytes / MIB:,.0f}", f"1/{fraction}",
            f"{limit / MIB:,.1f}{' *' if is_least else ''}", f"{plan.peak / MIB:,.1f}", f"{ours.bytes / MIB:,.1f}",
            f"{plan.stored_peak / MIB:,.0f}", f"{plan.tiles:,}", f"{best:.2f}", f"{least:.2f}", f"{least / best:.2f}",
            f"{plan.seconds:.2f}", f"{error:.0e}",
        )), flush=True)  # fmt: skip
        del ours


def fitting(model: nn.Module, limit: int, x: Tensor, backward: bool) -> tuple[Any, int]:
    """The model by tiles within a limit, or within the least that the error names if that is more."""
    while True:
        big = gridwise.tiled(model, memory=limit, store=tempfile.gettempdir(), progress=False)
        try:
            big.plan(x, backward=backward)
        except gridwise.errors.UnsupportedError as error:
            limit = int(re.findall(r"memory=([\d,]+) or more", str(error))[0].replace(",", ""))
        else:
            return big, limit


COLUMNS = ("model", "", "plain", "part", "limit", "planned", "measured", "store", "tiles", "plain s", "tiled s", "ratio",
           "plan s", "error")  # fmt: skip
WIDTHS = (18, 4, 6, 5, 8, 8, 9, 6, 6, 8, 8, 6, 7, 6)


def print_models(only: str, rounds: int) -> None:
    """A line for each model, pass and fraction, as soon as it is measured."""
    chosen = [name for name in MODELS if any(part in name.lower() for part in only.lower().split(","))]
    if chosen:
        print("MiB, and seconds of one core; f: forward, f+b: forward and backward")
        print("*: the least that would do, where the fraction is less\n")
        print(line(COLUMNS))
    for name in chosen:
        for backward in (False, True):
            found = in_a_process(rows, name, backward, rounds)
            if isinstance(found, ModuleNotFoundError):
                print(f"{name}: not measured: {found.name} is not installed")
                break
            if isinstance(found, Exception):
                raise found


def line(cells: Sequence[str]) -> str:
    return "".join(
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="models whose names contain this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_models(options.only, options.rounds)


if __name__ == "__main__":
    main()
