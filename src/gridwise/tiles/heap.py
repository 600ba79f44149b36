"""Keeping the memory of a CPU process within a limit, though its allocator keeps what is freed.

Tiles repeat their sizes, and a page that the system has to clear takes longer than many an operator on it. So tensors of tiles
come from a pool that uses freed memory again within the limit (`torch_internals.page_pool`). Where there is none, for want of a
compiler, large blocks are mapped one by one, and go when they are freed; what lies free in the process is kept out of use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

from ..memory_sizes import free_blocks, map_blocks_from, occupy_free_blocks, trim
from ..torch_internals.page_pool import page_pool

POOLED = 0.88
"""The part of a limit that the pool may hold; the rest is for small blocks, and for what is not made of tensors."""
WITH_GAPS = 2.5
"""How much the process may grow, over what is in use, if glibc uses freed memory again: its blocks leave gaps."""
LARGE, LARGEST_BY_DEFAULT = 1 << 17, 1 << 25
"""Blocks that are mapped one by one within a limit, and those that glibc maps at most otherwise."""
_lock, _inside = Lock(), 0


@contextmanager
def within(limit: int | None, in_use: int, device: torch.device) -> Iterator[None]:
    """While the body runs, this thread's tensors take up to `limit` bytes, if no more than `in_use` are needed at a time."""
    if limit is None or device.type != "cpu":
        yield
        return
    with page_pool(max(in_use, int(POOLED * limit))) as is_pooled:
        if is_pooled or in_use * WITH_GAPS <= limit:
            yield
        else:
            with _mapped_one_by_one():
                yield


@contextmanager
def _mapped_one_by_one() -> Iterator[None]:
    trim()
    _enter(1)
    occupied = occupy_free_blocks(LARGE)
    try:
        yield
    finally:
        free_blocks(occupied)
        _enter(-1)


def is_mapped_one_by_one() -> bool:
    """Whether freed memory goes back to the system at present, so that all memory is fresh."""
    return _inside > 0


def _enter(by: int) -> None:
    """Calls in several threads share the process's allocator."""
    global _inside
    with _lock:
        _inside += by
        map_blocks_from(LARGE if _inside else LARGEST_BY_DEFAULT)
