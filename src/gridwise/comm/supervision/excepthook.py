"""An exception hook: when a worker ends with an uncaught exception, its traceback is printed and all workers end.

Python prints the traceback and ends the process. Under MPI that is not enough, because MPI's finalization waits for the
others, which wait for this worker; so it aborts the job instead. Over torch.distributed the others raise an error with
this worker's name and exception (see `watch`). An existing hook is called, not replaced. `sys.exit` does not reach the
hook: the watch treats such a worker as finished, and names it to those that wait for it.

The others may wait from the start of the job, so under an MPI launcher with several processes the hook is installed by
`import gridwise`. Before MPI itself has started, the launcher is asked to end the job: Hydra's by the PMI command that
`MPI_Abort` would send; others (Open MPI, `srun --kill-on-bad-exit`) end it by themselves when a process fails. A worker
that exits without an error before `gridwise.world()` is detected by those that wait: see `start_timeout`.
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

from ...errors import WorkerDied
from ...log import is_debugging
from ..transports.base import Transport
from . import original_stderr
from .watch import Watch

PASSED_ON = 0.3
"""Seconds for a launcher to forward the traceback: output that it has not read when it ends a job is lost."""

_installed: list[Transport] = []
"""The transports whose workers end with this one."""
_is_mpi_job: list[bool] = []
"""Not empty if an MPI launcher has started this process along with others."""


def end_all_on_exception(transport: Transport) -> None:
    """Let an uncaught exception in this process end all workers of the transport."""
    _installed.append(transport)
    transport.on_close.append(lambda: _installed.remove(transport))
    _hook()


def end_mpi_job_on_exception() -> None:
    """Let an uncaught exception in this process end the MPI job, even before a transport has been made."""
    _is_mpi_job.append(True)
    _hook()


@functools.cache
def _hook() -> None:
    """Install the hook, once; it stays when transports are closed."""
    before, process = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
        original_stderr.flush_all()  # either may have been closed: the others are told in any case
        try:
            if not _is_told_elsewhere(error):
                before(kind, error, stack)
        finally:
            original_stderr.flush_all()
            if os.getpid() == process:  # not in a forked child
                for each in list(_installed):
                    with contextlib.suppress(Exception):
                        _end(each, kind, error)
                if _is_mpi_job and not _installed:
                    with contextlib.suppress(Exception):
                        _end_mpi_job()

    sys.excepthook = hook


def _is_told_elsewhere(error: BaseException) -> bool:
    """Whether another worker's end is why this one ends: one survivor then says so in a few words, without a traceback."""
    if not isinstance(error, WorkerDied) or not error.elsewhere or not _installed or is_debugging():
        return False
    transport = _installed[-1]
    if transport.rank == min(set(range(transport.size)) - set(error.workers), default=transport.rank):
        original_stderr.say(f"gridwise: {error}")
    return True


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
