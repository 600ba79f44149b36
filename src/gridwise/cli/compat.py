"""`gridwise compat [-n 4] script.py [args]`: a script written for DistDL, torchdistX or pytagi (see `gridwise_compat`).

Without `-n` the script runs in this process, so `mpiexec -n 4 gridwise compat script.py` works too. `gridwise_compat` is
not imported here but run as a module: nothing in Gridwise depends on it.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .run import Job, refuse, start_workers

MODULE = ["-m", "gridwise_compat"]


def compat(
    script: Annotated[str, typer.Argument(help="The Python script, or the name of a module after -m.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    as_module: Annotated[bool, typer.Option("-m", help="The script is the name of a module.")] = False,
    prefer_installed: Annotated[
        bool, typer.Option("--prefer-installed", help="Use the old library itself where it is installed.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("-n", "--workers", min=1, help="How many workers to start; default: run here.")
    ] = None,
    transport: Annotated[str, typer.Option(help="How started workers communicate: auto, mpi or gloo.")] = "auto",
) -> None:
    """Run a script written for DistDL, torchdistX or pytagi."""
    if not as_module and not os.path.exists(script):
        refuse("gridwise compat", f"there is no script {script!r}; see gridwise compat --help.")
    options = [*["--prefer-installed"] * prefer_installed, *["-m"] * as_module]
    command = [*MODULE, *options, script, *(arguments or [])]
    if workers is not None:
        start_workers("gridwise compat", command, Job(workers), transport)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command])
