"""Keeping freed memory in the process: glibc's allocator is set so that large tensors do not fault in new pages each time.

By default glibc maps every block of 32 MiB or more afresh and returns it to the system when it is freed, so each large
temporary tensor costs a page fault per 4 KiB; in a 2-D convolution step that is more than half of the time. Two `mallopt`
calls in the running process prevent this. The price is memory: freed memory stays with the process, ready for the next
tensor. Gain and price are measured in benchmarks/README.md. Workers get this by default; `GRIDWISE_MALLOC=off` leaves the
allocator alone. Only glibc is affected: elsewhere (macOS, musl, jemalloc preloaded) nothing happens.
"""

from __future__ import annotations

import ctypes
import sys

from ..settings import is_on

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Configure the allocator unless `GRIDWISE_MALLOC=off`; return whether it was done."""
    if not is_on("GRIDWISE_MALLOC") or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, _LARGEST_INT)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
