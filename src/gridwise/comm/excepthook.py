"""What happens when a worker ends with an exception that nobody caught: all end, and this one's traceback comes first.

Python prints the traceback and ends the process. Under MPI that is not enough, since the end of an MPI program waits
for the others, who wait for this worker: it aborts the job instead. Over torch.distributed the others raise an error
with this worker's name and exception (see `watch`). A hook that was there before is called, not replaced. `sys.exit` is
no exception that a hook gets to see: the watch takes it for a worker that has finished, and names it to those who wait.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from types import TracebackType

from .transport import Transport
from .watch import Watch

_installed: list[Transport] = []
"""The transports whose workers end with this one."""
_hooked: list[bool] = []
"""Whether the hook is in place: it stays, whatever transports come and go."""


def end_all_on_exception(transport: Transport) -> None:
    """Let an exception that nobody catches in this process end all workers of the transport."""
    _installed.append(transport)
    transport.on_close.append(lambda: _installed.remove(transport))
    if _hooked:
        return
    _hooked.append(True)
    before, process = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
        sys.stdout.flush()
        before(kind, error, stack)
        sys.stderr.flush()
        if os.getpid() == process:  # not in a forked child
            for each in list(_installed):
                with contextlib.suppress(Exception):
                    _end(each, kind, error)

    sys.excepthook = hook


def _end(transport: Transport, kind: type[BaseException], error: BaseException) -> None:
    if isinstance(transport.watch, Watch):
        transport.watch.announce("".join(traceback.format_exception_only(kind, error)).strip())
    if not transport.can_be_cut:
        transport.abort()
