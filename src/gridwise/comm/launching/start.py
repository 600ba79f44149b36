"""Starting processes on this machine: over which transport, with which launcher, in which environment, and ending them.

MPI workers are started by the mpiexec that belongs to mpi4py's library, gloo workers one by one. They are fresh
processes in a session of their own, so that Ctrl-C reaches only the one who started them, and it ends the rest; should it
die, their guardian does.
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import PartitionError, TransportError
from ...progress import NOTEBOOK, in_notebook
from ..supervision import guardian
from .cores import cores

FOLDER = "GRIDWISE_FOLDER"
"""Names the folder, of this user alone, where the workers of a pool meet over gloo."""
FOREIGN_PREFIXES = (
    "PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "SLURM_", "HYD", "MPI_LOCAL", "MPIEXEC_", "TORCHELASTIC_",
)  # fmt: skip
FOREIGN_NAMES = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GRIDWISE_POOL", "GRIDWISE_TRANSPORT",
    guardian.JOB, FOLDER,
}  # fmt: skip
"""What launchers tell their processes. Inherited, it would make new workers believe that they belong to the old job."""

YIELDING = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
"""MPICH waits by looking again and again, and gives the core away with `sched_yield`, which Linux hardly honours. This
makes it sleep for an instant. Measured on 2 cores, a small all-reduce of 12 workers takes 1 ms instead of 3.5, of 4
workers 0.7 ms instead of 4.5; of 2 workers 0.3 ms instead of 0.01, so it is only for workers that share cores."""


def choose(transport: str, workers: int) -> str:
    """'mpi' or 'gloo' for "auto": MPI where it works and every worker has a core, because it waits by spinning."""
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
    """The mpiexec of the MPI library that mpi4py uses: the wheel's own beside the interpreter, else one on PATH."""
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
    """'openmpi' or 'mpich', which mpi4py belongs to; None if it is not there or does not work. Asked in another process."""
    library = _output(sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())")
    return family(library) if library else None


def family(text: str) -> str:
    """Open MPI and the descendants of MPICH do not start one another's processes."""
    return "openmpi" if "open mpi" in text.lower() or "openrte" in text.lower() else "mpich"


def spelt_family(name: str) -> str:
    return "Open MPI" if name == "openmpi" else "MPICH"


def _output(*command: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = clean(os.environ)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment).stdout
    return ""


def mpiexec_command(workers: int) -> list[str]:
    """`mpiexec -n workers` with the options that this family of MPI needs for it on one machine."""
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
    """The environment without what a launcher has told its processes."""
    return {
        name: value
        for name, value in environment.items()
        if name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES)
    }


def environment_for(workers: int, transport: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of `workers` new processes: each its share of the cores, and able to import this package."""
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
class Crew:
    """Processes that were started together.

    `direct` says that they are the workers, in order; else a launcher stands between.
    `litter` are files to remove when they have been killed, `folder` is one to remove in any case.
    """

    job: str
    folder: str
    guardian: subprocess.Popen[bytes]
    direct: bool
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    litter: set[str] = field(default_factory=set)
    owner: int = field(default_factory=os.getpid)

    def ended(self) -> str | None:
        """Which of the started processes has ended, in words; None while all run."""
        for i, process in enumerate(self.processes):
            code = process.poll()
            if code is not None:
                who = f"worker {i}" if self.direct else "the launcher"
                return f"{who} ended with {spelt_exit(code)}"
        return None

    def wait(self, seconds: float) -> bool:
        """Whether all have ended by themselves after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(seconds)
            return True
        return False

    def kill(self) -> None:
        """End all of them and whatever they have started, now, unless all have ended well. Nothing in a fork of the owner."""
        if os.getpid() != self.owner:
            return
        ended_well = bool(self.processes) and all(process.poll() == 0 for process in self.processes)
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if not ended_well:
            guardian.end(self.job)
        for process in self.processes:
            process.wait()
        for path in self.litter:
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        guardian.release(self.guardian)


def start(workers: int, transport: str, command: list[str], environment: Mapping[str, str]) -> Crew:
    """Start `workers` processes of `command`: by mpiexec, or one by one with a RANK each."""
    launcher = mpiexec_command(workers) if transport == "mpi" else []
    job, folder = guardian.new_name(), tempfile.mkdtemp(prefix="gridwise-")
    crew = Crew(job, folder, guardian.guard(job, folder), direct=not launcher)
    environment = {**environment, guardian.JOB: job, FOLDER: folder}
    try:
        if launcher:
            crew.processes.append(_spawn([*launcher, *command], environment))
            return crew
        for rank in range(workers):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers}
            crew.processes.append(_spawn(command, {**environment, **{name: str(n) for name, n in place.items()}}))
    except BaseException:
        crew.kill()
        raise
    return crew


def _spawn(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)


def spelt_exit(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit status {code}"


def shared_memory_files() -> list[str]:
    """The files of this process's shared memory for MPICH, which removes them at its end, but not when it is killed."""
    return sorted(guardian.shared_memory_of(os.getpid()))
