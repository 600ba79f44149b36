"""What goes wrong before `gridwise.world()`: a bad setting, an exception, a worker that leaves. Nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gridwise.comm.launching.start import environment_for, mpi_missing, mpiexec_command

needs_mpi = pytest.mark.skipif(mpi_missing() is not None, reason=str(mpi_missing()))
WORKER = """
import os, sys
import gridwise.comm.launching.find
rank = int(os.environ["PMI_RANK"])
{first}
print("size", gridwise.world().size)
"""


def over_mpi(tmp_path: Path, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(WORKER.format(first=first))
    return subprocess.run(
        [*mpiexec_command(2), sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**environment_for(2, "mpi"), **environment},
    )


@needs_mpi
def test_a_wrong_timeout_under_mpiexec_is_an_error(tmp_path: Path) -> None:
    done = over_mpi(tmp_path, GRIDWISE_TIMEOUT="60s")
    assert done.returncode != 0
    assert "PartitionError: `GRIDWISE_TIMEOUT` (='60s') must be a number of seconds" in done.stderr


@needs_mpi
def test_an_exception_before_the_world_ends_the_job(tmp_path: Path) -> None:
    done = over_mpi(tmp_path, "if rank == 1: raise ValueError('no such file')")
    assert done.returncode != 0
    assert "ValueError: no such file" in done.stderr


@needs_mpi
def test_a_worker_that_leaves_before_the_world_is_missed(tmp_path: Path) -> None:
    soon = "gridwise.comm.supervision.start_timeout.MIN_SECONDS = 1.0"
    done = over_mpi(tmp_path, f"{soon}\nif rank == 1: sys.exit(0)", GRIDWISE_TIMEOUT="2")
    assert done.returncode != 0
    assert "gridwise: worker 0 has waited 2 s in gridwise.world() for the start of MPI" in done.stderr
    assert "not all of the 2 processes have come" in done.stderr
