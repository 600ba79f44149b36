"""Transports that there are here, and processes that have to be gone."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from gridwise.comm.launching.start import mpi_missing

needs_mpi = pytest.mark.skipif(mpi_missing() is not None, reason="no MPI")
TRANSPORTS = ["gloo", pytest.param("mpi", marks=needs_mpi)]


def check_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"of {pids} some live on"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(status) and not status.startswith("Z")
