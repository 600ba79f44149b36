"""Keeping the memory of a CPU process within a limit, though its allocator keeps what is freed.

glibc reuses freed memory, which saves page faults; but tensors of many sizes leave gaps, of up to one and a half times what
is in use. Where a limit has no room for these, large blocks are mapped one by one while tiles run, and go when they are
freed: the process then grows by what is in use, and by no more. What lies free in the process already is kept out of use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

from ..memory_sizes import free_blocks, map_blocks_from, occupy_free_blocks, trim

WITH_GAPS = 2.5
"""How much the process may grow, over what is in use, if freed memory is reused."""
LARGE, LARGEST_BY_DEFAULT = 1 << 17, 1 << 25
"""Blocks that are mapped one by one within a limit, and those that glibc maps at most otherwise."""
_lock, _inside = Lock(), 0


@contextmanager
def without_gaps(limit: int | None, in_use: int, device: torch.device) -> Iterator[None]:
    """While the body runs, the process grows by what it uses, unless there is room for gaps."""
    if limit is None or device.type != "cpu" or in_use * WITH_GAPS <= limit:
        yield
        return
    trim()
    _enter(1)
    occupied = occupy_free_blocks(LARGE)
    try:
        yield
    finally:
        free_blocks(occupied)
        _enter(-1)


def is_without_gaps() -> bool:
    """Whether freed memory goes back to the system at present, so that all memory is fresh."""
    return _inside > 0


def _enter(by: int) -> None:
    """Calls in several threads share the process's allocator."""
    global _inside
    with _lock:
        _inside += by
        map_blocks_from(LARGE if _inside else LARGEST_BY_DEFAULT)
