"""`gridwise run -n 4 script.py [args]`: replaces itself by mpiexec or torchrun with the right arguments.

`gridwise run --nodes 4 -n 16 script.py` prints the lines for a cluster instead (see `comm.launching.cluster`).

It knows which mpiexec belongs to mpi4py's library, how many threads each worker should have, and how to make MPI's waiting
bearable when workers share cores. Nothing that it starts outlives it, even if it is killed while MPI starts: a guardian
process sees to that (see `comm.supervision.guardian`).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from ..comm.launching.cluster import cluster_of, lines_for
from ..comm.launching.start import choose, environment_for, mpiexec_command
from ..comm.supervision import guardian
from ..errors import GridwiseError

LEAVE_SECONDS = 5.0
"""How long processes may take to end after mpiexec or torchrun has ended."""


def run(
    script: Annotated[str, typer.Argument(help="The Python script that every worker runs.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, help="How many workers.")] = 4,
    transport: Annotated[str, typer.Option(help="How they communicate: auto, mpi or gloo.")] = "auto",
    nodes: Annotated[
        str | None,
        typer.Option(help="Machines of a cluster, a number or names: print the lines that start the workers there."),
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="A folder for what they compute, send and wait for (see gridwise.trace).")
    ] = None,
) -> None:
    """Run a script on several workers of this machine, by mpiexec or torchrun.

    With --nodes nothing is started: the command lines for a cluster are printed.
    """
    if not os.path.exists(script):
        kind = "option" if script.startswith("-") else "script"
        print(f"gridwise run: there is no {kind} {script!r}; see gridwise run --help.", file=sys.stderr)
        raise typer.Exit(2)
    traced = [] if trace is None else ["-m", "gridwise.planning.tracing.traced_script", trace]
    command = [*traced, script, *(arguments or [])]
    if nodes is None:
        start_workers("gridwise run", command, workers, transport)
    print_lines(nodes, workers, transport, command)


def print_lines(nodes: str, workers: int, transport: str, script: list[str]) -> None:
    """Print the command lines for a cluster, each below a shell comment that says when to use it."""
    try:
        cluster = cluster_of(nodes, workers)
        lines = lines_for(cluster, transport, script)
    except GridwiseError as error:
        print(f"gridwise run: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    print(f"# {cluster.workers} workers, {cluster.per_node} on each of {cluster.count} machines. Nothing was started.")
    for line in lines:
        print(f"# {line.remark}" + f"\n{line.command}" * bool(line.command))


def start_workers(command_name: str, script: list[str], workers: int, transport: str) -> NoReturn:
    """Replace this process by mpiexec or torchrun, which starts `workers` processes of a Python command line."""
    try:
        chosen = choose(transport, workers)
        command = command_for(chosen, workers, script)
        environment = environment_for(workers, chosen)
    except GridwiseError as error:
        print(f"{command_name}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    job = guardian.new_name()
    guardian.guard(job, patience=LEAVE_SECONDS)
    os.execvpe(command[0], command, {**environment, guardian.JOB: job})


def command_for(transport: str, workers: int, script: list[str]) -> list[str]:
    """The command line that starts `workers` processes of a Python script over the transport."""
    if transport == "mpi":
        return [*mpiexec_command(workers), sys.executable, *script]
    torchrun = [
        sys.executable,
        "-m",
        "gridwise.comm.launching.torchrun",
        "--standalone",
        "--nproc-per-node",
        str(workers),
    ]
    return [*torchrun, *script]
