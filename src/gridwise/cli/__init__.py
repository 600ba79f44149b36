"""The command `gridwise`: `run` starts workers, `compat` runs old scripts, `doctor` inspects this machine, `plan`
predicts what a model will need, `tiled` runs a model on a file of any size, `checkpoint` manages checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from ..version import __version__
from . import checkpoint
from .compat import compat
from .doctor import doctor
from .plan import plan
from .run import run
from .tiled import tiled

app = typer.Typer(help="Tensors on a grid of workers.", no_args_is_help=True, add_completion=False)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"gridwise {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tensors on a grid of workers."""


app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(compat)
app.command()(doctor)
app.command()(plan)
app.command()(tiled)
app.add_typer(checkpoint.app, name="checkpoint")


def main() -> None:
    """The entry point of the command."""
    app()
