"""When a pool or the program that started it ends, nothing of it is left; and what its workers inherit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import TRANSPORTS, check_gone, needs_mpi

from gridwise.comm.launching import start
from gridwise.comm.launching.launch import launch
from gridwise.comm.launching.start import environment_for


def test_variables_of_another_launcher_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "RANK", "MASTER_PORT", "HYDI_CONTROL_FD"}
    for name in theirs:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("LOCAL_DATA", "kept")
    environment = environment_for(2, "gloo")
    assert not theirs & set(environment)
    assert environment["LOCAL_DATA"] == "kept"


def test_launch_starts_and_ends_one_worker() -> None:
    (pid,) = launch(os.getpid, workers=1)
    assert pid != os.getpid()
    check_gone([pid])


def test_a_worker_that_cannot_be_killed_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    stuck, watcher = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    monkeypatch.setattr(start.guardian, "END_SECONDS", 0.1)
    monkeypatch.setattr(start.guardian, "members", lambda job: [])
    monkeypatch.setattr(os, "killpg", lambda pid, signal: None)
    monkeypatch.setattr(start.logger, "warning", warnings.append)
    start.StartedProcesses("job", str(tmp_path / "folder"), watcher, direct=True, processes=[stuck]).kill()
    assert "have not ended" in warnings[0]
    stuck.communicate()


def test_the_folders_of_workers_that_load_data_are_removed(tmp_path: Path) -> None:
    """Python would remove them at the end of a process that ends by itself."""
    environment = {**environment_for(1, "gloo"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOADS], env=environment, capture_output=True, text=True)
    assert done.stdout == "the disk has lost it\n", done.stderr
    assert list(tmp_path.iterdir()) == []


LOADS = """
import multiprocessing.util, sys
from gridwise import launch

def load():
    sys.stdout.close()
    multiprocessing.util.get_temp_dir()  # as a DataLoader with processes does for its queues
    raise OSError("the disk has lost it")

if __name__ == "__main__":
    try:
        launch(load, workers=1, transport="gloo")
    except OSError as error:
        print("the disk has lost it" if "the disk has lost it" in str(error) else error)
"""

WORLD_LEFT_OPEN = """
import sys
from gridwise.comm.launching.pool import Pool

def open_a_world():
    import gridwise
    from mpi4py import MPI
    return gridwise.world(MPI.COMM_WORLD).size

with Pool(3, "mpi") as pool:
    print(pool.run(open_a_world))
"""


@needs_mpi
def test_a_world_that_a_task_left_open_is_no_death_when_the_pool_ends(tmp_path: Path) -> None:
    script = tmp_path / "open.py"
    script.write_text(WORLD_LEFT_OPEN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=150, env=environment)
    assert done.stdout == "[3, 3, 3]\n"
    assert done.stderr == ""


PARENT = """
import os, signal, sys, time
from gridwise.comm.launching.pool import Pool
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where tests run in the background of a shell
with Pool(2, sys.argv[1]) as pool:
    print(*pool.run(os.getpid), flush=True)
    pool.run(time.sleep, 60)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_no_worker_outlives_its_parent(transport: str, how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), transport],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    time.sleep(0.2)
    parent.send_signal(how)
    parent.wait(20)
    parent.stdout.close()
    check_gone(children)
