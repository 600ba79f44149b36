"""Keep freed memory in the process: glibc's allocator set so that large tensors do not fault their pages in afresh.

By default glibc maps every block of 32 MiB and more anew and gives it back when it is freed, so each large temporary
tensor pays a page fault per 4 KiB; on a 2-D convolution step that is more than half of the time. Two `mallopt` calls in
the running process stop it. The price is memory: what was freed stays with the process, ready for the next tensor. Gain
and price are measured in benchmarks/README.md. Workers get this by default; `GRIDWISE_MALLOC=off` leaves the allocator
alone. Only glibc is touched: elsewhere (macOS, musl, jemalloc preloaded) nothing happens.
"""

from __future__ import annotations

import ctypes
import sys

from ..settings import is_on

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Set the allocator unless `GRIDWISE_MALLOC=off`; tell whether it was set."""
    if not is_on("GRIDWISE_MALLOC") or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, _LARGEST_INT)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
