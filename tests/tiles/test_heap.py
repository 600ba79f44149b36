"""Within a limit, freed memory is used again, or leaves the process at once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from gridwise import compiling
from gridwise.tiles import heap
from gridwise.tiles.heap import within

CPU = torch.device("cpu")


def _anonymous() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))


@contextmanager
def _no_pool(budget: int) -> Iterator[bool]:
    yield False


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="only glibc keeps freed memory so")
@pytest.mark.parametrize("has_pool", [True, False])
def test_the_process_grows_by_no_more_than_the_limit(has_pool: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_pool and compiling.compiler() is None:
        pytest.skip("no C++ compiler")
    if not has_pool:
        monkeypatch.setattr(heap, "page_pool", _no_pool)
    mixed = [torch.ones(1 << 16) for _ in range(64)]
    del mixed[::2]  # now there are free blocks between others
    limit = 16 << 20 if has_pool else 1
    with within(limit=limit, in_use=1, device=CPU):
        torch.ones(1)
        before = _anonymous()
        for size in (1 << 16, 1 << 20, 3 << 20, 1 << 21, 3 << 19):
            torch.ones(size)
        assert _anonymous() - before < limit + (1 << 20)
        assert heap.is_mapped_one_by_one() is not has_pool
    assert not heap.is_mapped_one_by_one()


def test_where_there_is_room_nothing_changes() -> None:
    with within(limit=None, in_use=1, device=CPU), within(limit=100, in_use=40, device=CPU):
        assert not heap.is_mapped_one_by_one()
