"""A guardian: a small process that ends the processes of a job when their launcher is gone, so that none outlives it.

Workers cannot do so themselves: while MPI starts, nothing else runs in them, and mpiexec puts each of its processes into a
session of its own and does not forward its death. So every process of a job has the job's name in its environment (`JOB`),
which its children inherit, and a guardian next to the launcher searches for that name when the launcher has died, whatever
the signal. It watches the process, not the thread that started it: a notebook's thread may end. It also removes the files
that the dead processes have left: MPICH's shared memory, and the folder through which workers find each other.

Without /proc (on macOS), `ps` shows the environments.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import bare_process

JOB = "GRIDWISE_JOB"
LOOK_SECONDS = 0.3
END_SECONDS = 10.0
"""How long processes that were killed may take to end; one in an uninterruptible call of the kernel may take for ever."""
PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")


def new_name() -> str:
    """A unique name for a job; it is not a secret."""
    return secrets.token_hex(8)


def guard(job: str, folder: str = "", patience: float = 0.0) -> subprocess.Popen[bytes]:
    """Start the guardian of a job whose launcher is, or will be, this process; `release` it when the job has ended."""
    environment = {name: value for name, value in os.environ.items() if name != JOB}  # set if a job starts another
    return subprocess.Popen(
        bare_process.command("guardian", str(os.getpid()), job, folder, str(patience), str(time.time())),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def release(guardian: subprocess.Popen[bytes]) -> None:
    """Tell a guardian that its job has ended normally."""
    assert guardian.stdin is not None
    with contextlib.suppress(OSError):
        guardian.stdin.write(b".")
        guardian.stdin.close()
    guardian.wait()


def main(arguments: list[str]) -> None:
    """Wait until process `launcher` dies or releases the guardian; if it died, end what is left of `job`."""
    launcher, (job, folder), (patience, since) = int(arguments[0]), arguments[1:3], map(float, arguments[3:5])
    released = _wait(launcher)
    if not released:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and members(job):
            time.sleep(LOOK_SECONDS)
        end(job, since)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(launcher: int) -> bool:
    """Wait for the launcher, this process's parent; True if it has released the guardian, False if it has died."""
    hears = True
    while os.getppid() == launcher:
        if not hears:
            time.sleep(LOOK_SECONDS)
        elif select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            said = os.read(sys.stdin.fileno(), 1)
            if said:
                return True
            hears = False
    return False


def end(job: str, since: float) -> None:
    """Kill all processes of a job but this one, and remove the shared-memory files that MPICH has left `since` it began."""
    files: set[str] = set()
    quiet, deadline = 0, time.monotonic() + END_SECONDS
    while quiet < 3 and time.monotonic() < deadline:  # some may just be starting others
        found = [pid for pid in members(job) if pid != os.getpid()]
        quiet = 0 if found else quiet + 1
        for pid in found:
            files |= shared_memory_of(pid)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for path in files | abandoned_shared_memory(since):
        with contextlib.suppress(OSError):
            os.unlink(path)


def members(job: str) -> list[int]:
    """The processes that have the job's name in their environment."""
    mark = f"{JOB}={job}".encode()
    if not PROC.exists():
        return _listed(mark.decode())
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # another user's, or gone
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _listed(mark: str) -> list[int]:
    listing = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listing.splitlines() if mark in line.split()[1:]]


def shared_memory_of(pid: int) -> set[str]:
    """MPICH's shared-memory files of a process, which are left behind if it is killed."""
    with contextlib.suppress(OSError):
        lines = (PROC / str(pid) / "maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[-1] for line in lines if "/dev/shm/mpich" in line}
        return {path for path in paths if os.path.exists(path)}
    return set()


def abandoned_shared_memory(since: float) -> set[str]:
    """MPICH's shared-memory files that were made since then, and that no process has: left by one that died while MPI
    started. Until then no other process knows their names."""
    made: set[str] = set()
    for path in SHARED_MEMORY.glob("mpich_shm_*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            if status.st_uid == os.geteuid() and status.st_ctime > since - 0.1:  # file systems have coarser clocks
                made.add(str(path))
    if made:
        for entry in PROC.iterdir():
            if entry.name.isdigit():
                made -= shared_memory_of(int(entry.name))
    return made
