"""The command `gridwise`: `run` starts workers, `doctor` looks at this machine, `checkpoint` looks after checkpoints."""

from __future__ import annotations

import typer

from . import checkpoint
from .doctor import doctor
from .run import run

app = typer.Typer(help="Tensors on a grid of workers.", no_args_is_help=True, add_completion=False)
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.command()(doctor)
app.add_typer(checkpoint.app, name="checkpoint")


def main() -> None:
    """The entry point of the command."""
    app()
