"""What happens when a worker ends with an exception that nobody caught: all end, and this one's traceback comes first.

Python prints the traceback and ends the process. Under MPI that is not enough, since the end of an MPI program waits
for the others, who wait for this worker: it aborts the job instead. Over torch.distributed the others raise an error
with this worker's name and exception (see `watch`). A hook that was there before is called, not replaced. `sys.exit` is
no exception that a hook gets to see: the watch takes it for a worker that has finished, and names it to those who wait.

The others wait from the start of the job, so the hook is there from `import gridwise` on where MPI's launcher has
started several processes. Before MPI itself has started, its launcher is asked to end the job: Hydra's by the line of
PMI that `MPI_Abort` would send, while others (Open MPI, `srun --kill-on-bad-exit`) end it when a process fails. A
worker that leaves quietly before `gridwise.world()` is for those who wait to notice: see `start_timeout`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import time
import traceback
from types import TracebackType

from ..transports.base import Transport
from .watch import Watch

PASSED_ON = 0.3
"""Seconds for a launcher to pass on the traceback: what it has not read when it ends a job is lost."""

_installed: list[Transport] = []
"""The transports whose workers end with this one."""
_is_mpi_job: list[bool] = []
"""Whether the launcher of MPI has started this process and others."""


def end_all_on_exception(transport: Transport) -> None:
    """Let an exception that nobody catches in this process end all workers of the transport."""
    _installed.append(transport)
    transport.on_close.append(lambda: _installed.remove(transport))
    _hook()


def end_mpi_job_on_exception() -> None:
    """Let an exception that nobody catches in this process end the MPI job, though no transport has been made yet."""
    _is_mpi_job.append(True)
    _hook()


@functools.cache
def _hook() -> None:
    """Put the hook in place, once: it stays, whatever transports come and go."""
    before, process = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
        sys.stdout.flush()
        before(kind, error, stack)
        sys.stderr.flush()
        if os.getpid() == process:  # not in a forked child
            for each in list(_installed):
                with contextlib.suppress(Exception):
                    _end(each, kind, error)
            if _is_mpi_job and not _installed:
                with contextlib.suppress(Exception):
                    _end_mpi_job()

    sys.excepthook = hook


def _end(transport: Transport, kind: type[BaseException], error: BaseException) -> None:
    if isinstance(transport.watch, Watch):
        transport.watch.announce("".join(traceback.format_exception_only(kind, error)).strip())
    if not transport.can_be_cut:
        time.sleep(PASSED_ON)
        transport.abort()


def _end_mpi_job() -> None:
    mpi = sys.modules.get("mpi4py.MPI")
    time.sleep(PASSED_ON)
    if mpi is not None and mpi.Is_initialized():
        if not mpi.Is_finalized():
            mpi.COMM_WORLD.Abort(1)
        return
    pipe = int(os.environ.get("PMI_FD", "-1"))
    if pipe >= 0 and stat.S_ISSOCK(os.fstat(pipe).st_mode):  # a child that inherited the variable has no such socket
        os.write(pipe, b"cmd=abort exitcode=1\n")
