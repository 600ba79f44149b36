"""`gridwise tiled module:factory volume.zarr result.zarr --memory 6GiB`: a model on a file of any size, on one device.

The factory is a function or class that makes the model without arguments; it runs in its mode for inference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from ..checkpoint import read
from ..errors import CheckpointMismatch, GridwiseError, PartitionError
from ..tiles import tiled as make_tiled
from .factory import importing_from_here, model_of, shape_of

WHERE = ("model", "state_dict", "model_state_dict")
"""Names below which files of training jobs keep the state of the model."""


def tiled(
    factory: Annotated[str, typer.Argument(help="module:function that makes the model, without arguments.")],
    volume: Annotated[Path, typer.Argument(help="The input: .npy, HDF5, NIfTI, or a folder of Zarr.")],
    results: Annotated[
        list[Path] | None, typer.Argument(help="New files for what the model returns: .zarr, .npy, .h5.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="What it may use, as in 6GiB. Default: what is free.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A state dict: safetensors, a checkpoint of Gridwise, or of torch.save.")
    ] = None,
    tile: Annotated[
        str | None, typer.Option(help="In place of --memory: the size of tiles, as in 128x128x128.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="A folder on a fast disk, for what lies between stages.")] = None,
    device: Annotated[str | None, typer.Option(help="What computes: cpu (the default), or cuda.")] = None,
    method: Annotated[str, typer.Option(help="What is called, as in decode.")] = "forward",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results that are there already.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only print what it would do, and how long it would take.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="The same as an HTML page; nothing is run.")] = None,
) -> None:
    """Run a model on a file of any size, tile by tile, in bounded memory, with the numbers of the model."""
    is_plan = plan or html is not None
    try:
        if not results and not is_plan:
            raise PartitionError("it is not said where the result goes.", fix="name a new file, or ask for the --plan.")
        with importing_from_here(), torch.no_grad():
            model = model_of(factory, lambda made: made()).eval()
            if weights is not None:
                _load(model, weights)
            sizes = None if tile is None else shape_of("--tile", tile)
            methods = () if method == "forward" else (method,)
            big = make_tiled(
                model.to(device or "cpu"), memory, tile=sizes, store=store, methods=methods, overwrite=overwrite
            )
            if results and not is_plan:
                getattr(big, method)(volume, out=results if len(results) > 1 else results[0])
                return
            found = big.plan(volume, method=method)
            if html is not None:
                found.save_html(html)
                print(f"{html} written")
            if plan:
                Console(width=None if sys.stdout.isatty() else 160).print(found)
    except GridwiseError as error:
        print(f"gridwise tiled: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def _load(model: torch.nn.Module, path: Path) -> None:
    """Load a state dict, which may lie below a name that training jobs use."""
    state: Any = read(path)
    own = model.state_dict()
    found = [dict(_flat(part)) for part in (state, *(state.get(name) for name in WHERE)) if isinstance(part, dict)]
    best = max(found, key=lambda part: len(part.keys() & own.keys()))
    try:
        model.load_state_dict(best)
    except RuntimeError as error:
        raise CheckpointMismatch(f"{path} does not fit the model: {error}.") from None


def _flat(state: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor):
            yield f"{prefix}{name}", value
