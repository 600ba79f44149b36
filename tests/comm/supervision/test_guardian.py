"""Nothing that a launcher started outlives it, whenever and however it ends."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridwise.comm.launching.start import clean, environment_for, mpi_missing, start
from gridwise.comm.supervision import guardian

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
TRANSPORTS = ["gloo", pytest.param("mpi", marks=pytest.mark.skipif(mpi_missing() is not None, reason="no MPI"))]
MARK = "GRIDWISE_TEST_MARK"
LAUNCH = """
import sys, threading, time
from gridwise.comm.launching.pool import Pool
pool = Pool(2, sys.argv[1])
thread = threading.Thread(target=lambda: pool.run(time.sleep, 0 if "thread" in sys.argv else 300))
thread.start()
thread.join()
print("started", flush=True)
time.sleep(300)
"""


class Launcher:
    """A process that starts workers, and everything that comes of it, found by a mark in the environment."""

    def __init__(self, command: list[str]) -> None:
        self.mark = f"{MARK}={secrets.token_hex(8)}"
        environment = {**clean(os.environ), MARK: self.mark.split("=")[1], "PYTHONPATH": os.pathsep.join(sys.path)}
        environment["OMP_NUM_THREADS"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    def processes(self) -> dict[int, str]:
        """What lives of it, and the command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def wait_for(self, words: str, count: int) -> list[int]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = [pid for pid, command in self.processes().items() if words in command and "mpiexec" not in command]
            if len(found) >= count:
                return found
            time.sleep(0.02)
        raise AssertionError(f"{count} processes of {words} did not come: {self.processes()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def check_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 30
        while left := self.processes():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.1)


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("mpich*"))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "launcher.py"
    path.write_text(LAUNCH)
    return str(path)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_workers_that_are_starting_end_with_a_launcher_that_is_killed(script: str, transport: str) -> None:
    launcher = Launcher([script, transport])
    launcher.wait_for("gridwise.comm.launching.worker", 2)
    launcher.kill()
    launcher.check_nothing_is_left()


@pytest.mark.skipif(mpi_missing() is not None, reason="no MPI")
def test_workers_inside_the_start_of_mpi_end_with_their_launcher(script: str) -> None:
    """One of the two never comes, and the other spins inside MPI_Init, where nothing else of its process runs."""
    launcher = Launcher([script, "mpi"])
    first, second = launcher.wait_for("gridwise.comm.launching.worker", 2)
    os.kill(first, signal.SIGSTOP)
    while launcher.processes() and not guardian.shared_memory_of(second):
        time.sleep(0.05)  # until MPI starts there
    files = guardian.shared_memory_of(second)
    launcher.kill()
    launcher.check_nothing_is_left()
    assert not any(os.path.exists(path) for path in files)


def test_workers_live_on_when_the_thread_that_started_them_ends(script: str) -> None:
    launcher = Launcher([script, "gloo", "thread"])
    assert launcher.process.stdout is not None
    assert launcher.process.stdout.readline() == "started\n"
    time.sleep(1.0)
    assert len([one for one in launcher.processes().values() if "gridwise.comm.launching.worker" in one]) == 2
    launcher.kill()
    launcher.check_nothing_is_left()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_outlives_gridwise_run(tmp_path: Path, transport: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time, gridwise\ngridwise.world()\ntime.sleep(300)\n")
    command = ["-c", "from gridwise.cli import main; main()", "run", "-n", "2", "--transport", transport, str(script)]
    launcher = Launcher(command)
    launcher.wait_for(f"{sys.executable} {script}" if transport == "mpi" else f" -u {script}", 2)
    launcher.kill()
    launcher.check_nothing_is_left()


def test_a_process_that_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in an uninterruptible call of the kernel, say on a file system that is gone."""
    killed: list[int] = []
    monkeypatch.setattr(guardian, "END_SECONDS", 0.2)
    monkeypatch.setattr(guardian, "members", lambda job: [-7])
    monkeypatch.setattr(os, "kill", lambda pid, signal: killed.append(pid))
    guardian.end("job", time.time())
    assert set(killed) == {-7}


@pytest.mark.skipif(mpi_missing() is not None, reason="no MPI")
def test_a_worker_that_dies_while_mpi_starts_leaves_no_shared_memory() -> None:
    """Nobody has been told the name of the file by then."""
    dies = """
import glob, os, signal, time
if os.environ["PMI_RANK"] == "1":
    began, files = float(os.environ["BEGAN"]), "/dev/shm/mpich_shm_*"
    while not any(os.stat(each).st_ctime > began for each in glob.glob(files)):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
from mpi4py import MPI
"""
    environment = {**environment_for(2, "mpi"), "BEGAN": str(time.time())}
    started = start(2, "mpi", [sys.executable, "-c", dies], environment)
    while started.ended() is None:
        time.sleep(0.02)
    left = guardian.abandoned_shared_memory(started.since)
    started.kill()
    assert left
    assert not any(os.path.exists(path) for path in left)


def test_shared_memory_that_somebody_has_is_not_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    since = time.time()
    mine, old = (tmp_path / f"mpich_shm_{name}_0" for name in ("a", "b"))
    for path in (mine, old):
        path.write_bytes(b"x" * 4096)
    monkeypatch.setattr(guardian, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(guardian, "shared_memory_of", lambda pid: {str(mine)} if pid == os.getpid() else set())
    assert guardian.abandoned_shared_memory(since) == {str(old)}
    assert guardian.abandoned_shared_memory(time.time() + 60) == set()


@pytest.mark.soak
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_launchers_are_killed_at_any_moment(script: str, transport: str) -> None:
    moments = random.Random(0)
    before = shared_memory()
    for _ in range(20):
        launcher = Launcher([script, transport])
        time.sleep(moments.uniform(0.5, 12.0))
        launcher.kill()
        launcher.check_nothing_is_left()
    assert shared_memory() <= before
