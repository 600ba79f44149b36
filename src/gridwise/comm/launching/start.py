"""Starting and ending processes on this machine: the choice of transport, launcher and environment.

MPI workers are started by the mpiexec that belongs to mpi4py's library, gloo workers one by one. They are new processes
in their own sessions, so that Ctrl-C reaches only the process that started them, which then ends them; if it dies, their
guardian does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import PartitionError, TransportError
from ...log import logger
from ...progress import NOTEBOOK, in_notebook
from ..supervision import guardian
from .cores import cores

FOLDER = "GRIDWISE_FOLDER"
"""The variable that names the folder, accessible to this user only, through which a pool's gloo workers find each other."""
FOREIGN_PREFIXES = (
    "PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "SLURM_", "HYD", "MPI_LOCAL", "MPIEXEC_", "TORCHELASTIC_",
)  # fmt: skip
FOREIGN_NAMES = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GRIDWISE_POOL", "GRIDWISE_TRANSPORT",
    guardian.JOB, FOLDER,
}  # fmt: skip
"""Variables that launchers set for their processes. Inherited, they would make new workers believe they are in the old job."""

YIELDING = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
"""MPICH waits by polling, and yields the core with `sched_yield`, which has little effect on Linux. This setting makes it
sleep briefly instead. Measured on 2 cores, a small all-reduce of 12 workers takes 1 ms instead of 3.5, of 4 workers
0.7 ms instead of 4.5, but of 2 workers 0.3 ms instead of 0.01; so it is only for workers that share cores."""


def choose(transport: str, workers: int) -> str:
    """'mpi' or 'gloo'; for "auto", MPI if it works and every worker has a core, because it waits by spinning."""
    wish = os.environ.get("GRIDWISE_TRANSPORT", "auto").lower() if transport == "auto" else transport
    if wish == "torch":
        wish = "gloo"
    if wish not in ("auto", "mpi", "gloo"):
        source = "`transport`" if transport != "auto" else "`GRIDWISE_TRANSPORT`"
        raise PartitionError(f"{source} (={wish!r}) must be 'auto', 'mpi' or 'gloo' to start workers.")
    if wish != "auto":
        return wish
    return "mpi" if workers <= cores() and mpi_missing() is None else "gloo"


def mpi_missing() -> str | None:
    """Why MPI workers cannot be started here; None if they can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if mpiexec() is None:
        return "no mpiexec that belongs to mpi4py's MPI library was found beside the interpreter or on PATH"
    return None


@functools.cache
def mpiexec() -> str | None:
    """The mpiexec of mpi4py's MPI library: the one beside the interpreter, from the wheel, else a matching one on PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("mpiexec")
    if found is None:
        return None
    mine = mpi_family()
    return found if mine is not None and family(_output(found, "--version")) == mine else None


@functools.cache
def mpi_family() -> str | None:
    """The MPI family of mpi4py, 'openmpi' or 'mpich'; None if mpi4py is missing or broken. Runs in another process."""
    library = _output(sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())")
    return family(library) if library else None


def family(text: str) -> str:
    """The MPI family that a version text names; Open MPI and MPICH derivatives cannot start each other's processes."""
    return "openmpi" if "open mpi" in text.lower() or "openrte" in text.lower() else "mpich"


def spelt_family(name: str) -> str:
    return "Open MPI" if name == "openmpi" else "MPICH"


def _output(*command: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = clean(os.environ)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment).stdout
    return ""


def mpiexec_command(workers: int) -> list[str]:
    """`mpiexec -n workers` with the options that this MPI family needs on a single machine."""
    path = mpiexec()
    if path is None or mpi_missing():
        raise TransportError(
            f"{workers} MPI workers were asked for, but {mpi_missing()}.",
            fix="pip install 'gridwise[mpi]' (mpi4py with MPICH), or transport='gloo'.",
        )
    command = [path, "-n", str(workers)]
    if family(_output(path, "--version")) == "openmpi":
        command.append("--oversubscribe")
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    return command


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that launchers set."""
    return {
        name: value
        for name, value in environment.items()
        if name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES)
    }


def environment_for(workers: int, transport: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for `workers` new processes: each gets its share of the cores and can import this package."""
    new = clean(os.environ)
    new.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
    new["GRIDWISE_TRANSPORT"] = transport
    if in_notebook():
        new[NOTEBOOK] = "on"  # for their progress bars
    home = str(Path(__file__).resolve().parents[3])
    if home not in new.get("PYTHONPATH", "").split(os.pathsep):
        new["PYTHONPATH"] = os.pathsep.join(filter(None, [new.get("PYTHONPATH"), home]))
    if transport == "gloo":
        new.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    elif workers > cores():
        for name, value in YIELDING.items():
            new.setdefault(name, value)
    new.update(extra or {})
    return new


@dataclass
class StartedProcesses:
    """Processes that were started together.

    `direct` says that they are the workers themselves, in order, rather than a launcher that starts the workers.
    `leftover_files` lists files to remove after the processes have been killed; `folder` is removed in any case.
    """

    job: str
    folder: str
    guardian: subprocess.Popen[bytes]
    direct: bool
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    leftover_files: set[str] = field(default_factory=set)
    owner: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)

    def ended(self) -> str | None:
        """A description of a process that has ended; None while all are running."""
        for i, process in enumerate(self.processes):
            code = process.poll()
            if code is not None:
                who = f"worker {i}" if self.direct else "the launcher"
                return f"{who} ended with {spelt_exit(code)}"
        return None

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for each process to end by itself; return whether all have."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(seconds)
            return True
        return False

    def kill(self) -> None:
        """Kill all of them and their descendants, unless all have succeeded, and clean up. Does nothing in a forked child."""
        if os.getpid() != self.owner:
            return
        ended_well = bool(self.processes) and all(process.poll() == 0 for process in self.processes)
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if not ended_well:
            guardian.end(self.job, self.since)
        if not self.wait(guardian.END_SECONDS):
            logger.warning(
                "some workers were killed but have not ended: a call of the kernel in them cannot be interrupted"
            )
        for path in self.leftover_files:
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        guardian.release(self.guardian)


def start_launcher(command: Sequence[str], environment: Mapping[str, str], patience: float) -> StartedProcesses:
    """Start a job by its launcher's command line. If this process dies, the job has `patience` seconds to end by itself."""
    job, folder = guardian.new_name(), tempfile.mkdtemp(prefix="gridwise-")
    started = StartedProcesses(job, folder, guardian.guard(job, folder, patience), direct=False)
    try:
        started.processes.append(_spawn(list(command), {**environment, guardian.JOB: job}))
    except BaseException:
        started.kill()
        raise
    return started


def start(workers: int, transport: str, command: list[str], environment: Mapping[str, str]) -> StartedProcesses:
    """Start `workers` processes running `command`: by mpiexec, or one by one with a RANK each."""
    launcher = mpiexec_command(workers) if transport == "mpi" else []
    job, folder = guardian.new_name(), tempfile.mkdtemp(prefix="gridwise-")
    started = StartedProcesses(job, folder, guardian.guard(job, folder), direct=not launcher)
    environment = {**environment, guardian.JOB: job, FOLDER: folder}
    try:
        if launcher:
            started.processes.append(_spawn([*launcher, *command], environment))
            return started
        for rank in range(workers):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers}
            started.processes.append(_spawn(command, {**environment, **{name: str(n) for name, n in place.items()}}))
    except BaseException:
        started.kill()
        raise
    return started


def _spawn(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)


def spelt_exit(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit status {code}"
