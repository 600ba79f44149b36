"""Within a limit, freed memory leaves the process at once."""

from __future__ import annotations

import ctypes

import pytest
import torch

from gridwise.tiles.heap import without_gaps

CPU = torch.device("cpu")


def _anonymous() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="only glibc keeps freed memory so")
def test_freed_blocks_leave_no_gaps() -> None:
    mixed = [torch.ones(1 << 16) for _ in range(64)]
    del mixed[::2]  # now there are free blocks between others
    with without_gaps(limit=1, in_use=1, device=CPU):
        torch.ones(1)
        before = _anonymous()
        for size in (1 << 16, 1 << 20, 3 << 20, 1 << 21):
            torch.ones(size)
        assert _anonymous() - before < 1 << 20


def test_where_there_is_room_nothing_changes() -> None:
    with without_gaps(limit=None, in_use=1, device=CPU), without_gaps(limit=100, in_use=40, device=CPU):
        pass
