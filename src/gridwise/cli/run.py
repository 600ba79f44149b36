"""`gridwise run -n 4 script.py [args]`: replaces itself by mpiexec or torchrun with the right arguments.

`gridwise run --nodes 4 -n 16 script.py` prints the lines for a cluster instead (see `comm.launching.cluster`).

`gridwise run --restarts 3 --grids 1x1x2x2,1x1x2x1 script.py` stays, and starts the job again when a worker has died (see
`comm.launching.restarts`).

It knows which mpiexec belongs to mpi4py's library, how many threads each worker should have, and how to make MPI's waiting
bearable when workers share cores. Nothing that it starts outlives it, even if it is killed while MPI starts: a guardian
process sees to that (see `comm.supervision.guardian`).
"""

from __future__ import annotations

import math
import os
import sys
from typing import Annotated, NamedTuple, NoReturn

import typer

from ..comm.launching.cluster import cluster_of, lines_for
from ..comm.launching.restarts import Start, run_with_restarts
from ..comm.launching.start import choose, environment_for, mpiexec_command
from ..comm.settings import grids_of
from ..comm.supervision import guardian
from ..errors import GridwiseError, PartitionError

WORKERS = 4
"""How many, if nothing is said."""
GRID = "GRIDWISE_GRID"
LEAVE_SECONDS = 5.0
"""How long processes may take to end after mpiexec or torchrun has ended."""


def run(
    script: Annotated[str, typer.Argument(help="The Python script that every worker runs.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    workers: Annotated[
        int | None,
        typer.Option("-n", "--workers", min=1, help=f"How many workers; by default {WORKERS}, or as --grids say."),
    ] = None,
    transport: Annotated[str, typer.Option(help="How they communicate: auto, mpi or gloo.")] = "auto",
    nodes: Annotated[
        str | None,
        typer.Option(help="Machines of a cluster, a number or names: print the lines that start the workers there."),
    ] = None,
    grids: Annotated[
        str | None,
        typer.Option(
            help="The grid of `gridwise.world().grid()`, as 1x1x2x2; several, 1x1x2x2,1x1x2x1: of each start in turn."
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            min=0, help="How often the job is started again after it has failed; by default once for each further grid."
        ),
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="A folder for what they compute, send and wait for (see gridwise.trace).")
    ] = None,
) -> None:
    """Run a script on several workers of this machine, by mpiexec or torchrun.

    With --restarts, a job in which a worker dies, or that fails otherwise, is started again, on the next of the --grids. The
    script goes on from its newest checkpoint. With --nodes nothing is started: the command lines for a cluster are printed.
    """
    if not os.path.exists(script):
        kind = "option" if script.startswith("-") else "script"
        refuse("gridwise run", f"there is no {kind} {script!r}; see gridwise run --help.")
    traced = [] if trace is None else ["-m", "gridwise.planning.tracing.traced_script", trace]
    command = [*traced, script, *(arguments or [])]
    try:
        jobs = jobs_for(workers, grids)
    except GridwiseError as error:
        refuse("gridwise run", str(error))
    times = len(jobs) - 1 if restarts is None else restarts
    if nodes is not None:
        if grids is not None or times:
            refuse(
                "gridwise run",
                "--nodes prints command lines, which take no --grids and no --restarts.\n"
                "  fix: set GRIDWISE_GRID, and use torchrun's own --max-restarts (docs: Launching).",
            )
        print_lines(nodes, jobs[0].workers, transport, command)
    elif times:
        starts = [start_of("gridwise run", command, job, transport) for job in jobs]
        raise typer.Exit(run_with_restarts(starts, times, LEAVE_SECONDS))
    else:
        start_workers("gridwise run", command, jobs[0], transport)


def refuse(command_name: str, why: str) -> NoReturn:
    print(f"{command_name}: {why}", file=sys.stderr)
    raise typer.Exit(2)


class Job(NamedTuple):
    """On how many workers a job runs, and on which grid if that was said."""

    workers: int
    grid: tuple[int, ...] = ()

    def __str__(self) -> str:
        on = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{on} ({'x'.join(map(str, self.grid))})" if self.grid else on


def jobs_for(workers: int | None, grids: str | None) -> list[Job]:
    """The job of each start: of each of the grids, if any were given."""
    if grids is None:
        return [Job(WORKERS if workers is None else workers)]
    jobs = [Job(math.prod(shape), shape) for shape in grids_of(grids, "`--grids`")]
    if workers not in (None, jobs[0].workers):
        raise PartitionError(
            f"`-n` (={workers}) workers cannot be on the first of `--grids` (={grids!r}), which has {jobs[0].workers} places.",
            fix="leave out -n.",
        )
    return jobs


def print_lines(nodes: str, workers: int, transport: str, script: list[str]) -> None:
    """Print the command lines for a cluster, each below a shell comment that says when to use it."""
    try:
        cluster = cluster_of(nodes, workers)
        lines = lines_for(cluster, transport, script)
    except GridwiseError as error:
        refuse("gridwise run", str(error))
    print(f"# {cluster.workers} workers, {cluster.per_node} on each of {cluster.count} machines. Nothing was started.")
    for line in lines:
        print(f"# {line.remark}" + f"\n{line.command}" * bool(line.command))


def start_workers(command_name: str, script: list[str], job: Job, transport: str) -> NoReturn:
    """Replace this process by mpiexec or torchrun, which starts the workers of a Python command line."""
    chosen = start_of(command_name, script, job, transport)
    name = guardian.new_name()
    guardian.guard(name, patience=LEAVE_SECONDS)
    os.execvpe(chosen.command[0], chosen.command, {**chosen.environment, guardian.JOB: name})


def start_of(command_name: str, script: list[str], job: Job, transport: str) -> Start:
    """How the workers of a Python command line are started."""
    extra = {GRID: "x".join(map(str, job.grid))} if job.grid else {}
    try:
        chosen = choose(transport, job.workers)
        command = command_for(chosen, job.workers, script)
        return Start(command, environment_for(job.workers, chosen, extra), str(job))
    except GridwiseError as error:
        refuse(command_name, str(error))


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
