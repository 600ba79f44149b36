"""Keeping the memory of a CPU process within a limit, though its allocator keeps what is freed.

Freed memory is reused without page faults, which are slow; but pieces of many sizes leave gaps. So it is given back to the
system only when a call would otherwise grow beyond its limit.
"""

from __future__ import annotations

import contextlib
import os

import torch

from ..memory_sizes import trim

PAGE = os.sysconf("SC_PAGE_SIZE")


class Heap:
    """The growth of this process's own memory since it was made, and the limit to it."""

    def __init__(self, limit: int | None, device: torch.device) -> None:
        self.limit = limit if device.type == "cpu" else None
        self._statm = -1
        if self.limit is not None:
            try:
                self._statm = os.open("/proc/self/statm", os.O_RDONLY)
            except OSError:  # not on Linux
                self.limit = None
                return
            trim()
            self.base = self._now()

    def make_room(self, nbytes: int) -> None:
        """Give back what is free, if `nbytes` more would exceed the limit."""
        if self.limit is not None and nbytes > PAGE and self._now() - self.base + nbytes > self.limit:
            trim()

    def _now(self) -> int:
        """Bytes of memory that are neither of files nor shared."""
        _, resident, shared, *_ = os.pread(self._statm, 128, 0).split()
        return (int(resident) - int(shared)) * PAGE

    def close(self) -> None:
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()
