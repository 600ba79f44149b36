"""THE transport of a process, on every transport."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from gridwise.comm.launching import find, start
from gridwise.comm.launching.start import clean, mpi_missing
from gridwise.errors import TransportError
from gridwise.testing import workers


@workers(1, 2, 3)
def test_current_is_the_world_of_the_task_and_always_the_same(gridwise_setting: tuple[str, int]) -> None:
    name, count = gridwise_setting
    transport = find.current()
    assert (transport.name, transport.size) == (name, count)
    assert find.current() is transport
    total = transport.all_sum(torch.tensor([float(transport.rank)]), transport.everyone)
    assert total.item() == sum(range(count))


@workers(2)
def test_a_forked_child_knows_its_rank_and_cannot_talk() -> None:
    transport = find.current()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            transport.all_sum(torch.ones(1), transport.everyone)
        except TransportError as error:
            os.write(write, f"{find.current().rank} {error}".encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1000).decode()
    os.close(read)
    os.waitpid(child, 0)
    assert said.startswith(f"{transport.rank} a sum was called in a process that")
    transport.barrier()


def world_under(**environment: str) -> str:
    """What `gridwise.world()` ends with in a process that these variables say another launcher has started."""
    done = subprocess.run(
        [sys.executable, "-c", "import gridwise; gridwise.world()"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**clean(os.environ), "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.skipif(mpi_missing() is not None, reason=str(mpi_missing()))
def test_srun_that_does_not_tell_mpi_of_the_others_is_explained() -> None:
    said = world_under(SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2")
    assert "TransportError: srun started 2 processes, but MPI in this process sees 1" in said
    assert "fix: srun --mpi=pmi2" in said


@pytest.mark.skipif(mpi_missing() is not None, reason=str(mpi_missing()))
def test_another_familys_mpiexec_is_told_apart_before_mpi_starts() -> None:
    if start.mpi_family() == "openmpi":
        pytest.skip("needs an mpi4py that is not Open MPI's")
    said = world_under(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0", PMIX_RANK="0", PMIX_NAMESPACE="a")
    assert "TransportError: this process was started by Open MPI's mpiexec, but mpi4py belongs to another MPI" in said
    assert "mpi4py uses MPICH" in said
