"""Open MPI's mpirun, with an mpi4py that is built for it."""

from __future__ import annotations

import os
import sys

import pytest

from launchers import JOB, check_death, check_run, run

pytestmark = pytest.mark.launchers


def mpirun(*words: str) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun.openmpi", "--oversubscribe", *root, *words]


def test_run(open_mpi: str) -> None:
    check_run(run(mpirun("-n", "3", open_mpi, JOB)), "mpi", 3)


def test_a_death_is_named(open_mpi: str) -> None:
    check_death(run(mpirun("-n", "3", open_mpi, JOB, "1")), "mpi", 3, victim=1)


def test_gridwise_run_finds_its_launcher(open_mpi: str) -> None:
    command = [open_mpi, "-c", "from gridwise.cli import main; main()", "run", "-n", "3", "--transport", "mpi", JOB]
    check_run(run(command), "mpi", 3)


def test_an_mpi4py_of_another_mpi_is_explained(open_mpi: str) -> None:
    """The interpreter of these tests has MPICH's, which Open MPI cannot start."""
    from gridwise.comm.launching.start import mpi_missing

    if mpi_missing():
        pytest.skip(str(mpi_missing()))
    done = run(mpirun("-n", "2", sys.executable, JOB))
    assert done.status != 0
    assert "mpi4py belongs to another MPI" in done.text
