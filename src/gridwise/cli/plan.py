"""`gridwise plan module:factory --input 1x1x512x512x512 --memory 40GiB`: a plan, or a ranking of grids.

No worker is started. The factory is a function or class that makes the model without arguments. It is called under
`gridwise.deferred_init`, so its tensors have no data and the model may be larger than this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from ..deferred_init import deferred_init
from ..errors import GridwiseError, PartitionError
from ..planning import Plan, Ranking
from ..planning import plan as make_plan
from ..planning.one_step import Optimizer
from ..planning.page import save_page
from .factory import importing_from_here, model_of, shape_of

OPTIMIZERS: dict[str, Optimizer | None] = {
    "none": None,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def plan(
    factory: Annotated[str, typer.Argument(help="module:function that makes the model, without arguments.")],
    input: Annotated[str, typer.Option("--input", help="The shape of the global input, as in 1x1x512x512x512.")],
    workers: Annotated[
        int | None,
        typer.Option("-n", "--workers", min=1, help="How many workers to find a grid for; default: as few as fit."),
    ] = None,
    grid: Annotated[str | None, typer.Option(help="The grid to plan, as in 1x1x4x4x4.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Try all grids: the default without --grid.", hidden=True)
    ] = False,
    memory: Annotated[str | None, typer.Option(help="What each worker has, as in 40GiB.")] = None,
    machine: Annotated[str | None, typer.Option(help="A machine's name, or its TOML file.")] = None,
    optimizer: Annotated[str, typer.Option(help=f"Whose states take memory: {', '.join(OPTIMIZERS)}.")] = "none",
    html: Annotated[Path | None, typer.Option(help="Write the result as an HTML page.")] = None,
) -> None:
    """Predict what a training step needs on a grid of workers (memory, time, messages), or which grid is best."""
    try:
        with importing_from_here():
            if optimizer not in OPTIMIZERS:
                raise PartitionError(f"`--optimizer` (={optimizer!r}) is none of {', '.join(OPTIMIZERS)}.")
            if grid is None and workers is None and memory is None:
                raise PartitionError(
                    "nothing says how many workers there are.",
                    fix="-n 64 ranks the grids of 64, --memory 40GiB finds the least number, --grid 1x1x4x4x4 plans one grid.",
                )
            if grid is not None and (workers is not None or memory is not None or search):
                raise PartitionError(
                    "`--grid` plans one grid; `-n`, `--memory` and `--search` look for one.",
                    fix="leave out --grid, or the others.",
                )
            shape, states = shape_of("--input", input), OPTIMIZERS[optimizer]
            extents, model = shape_of("--grid", grid or "1"), model_of(factory, deferred_init)
            found: Plan | Ranking
            if grid is not None:
                found = make_plan(model, extents, shape, optimizer=states, machine=machine)
            else:
                found = make_plan(
                    model, workers=workers, input_shape=shape, memory=memory, optimizer=states, machine=machine
                )
    except GridwiseError as error:
        print(f"gridwise plan: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    Console(width=None if sys.stdout.isatty() else 130).print(found)
    if html is not None:
        save_page(html, found)
        print(f"{html} written")
    if isinstance(found, Ranking) and not found.rows[0].fits:
        raise typer.Exit(1)
