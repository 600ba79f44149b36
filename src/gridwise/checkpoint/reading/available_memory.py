"""Check that there is memory for what a checkpoint claims to hold, before any is allocated.

A huge sparse file costs its writer nothing, and a load that fills new memory from it runs out of memory long after the
allocation has succeeded.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from ...errors import CheckpointError

_OF_GROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@cache
def largest() -> int:
    """The most bytes that a process can have here: memory and swap, or the limit of its control group if lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("SwapTotal:"))
    for file in _OF_GROUP:
        with contextlib.suppress(OSError, ValueError):  # it may say "max"
            total = min(total, int(file.read_text(encoding="ascii")))
    return total


def check_new(nbytes: int) -> None:
    """Raise if a load would have to allocate more bytes than there are."""
    if nbytes > largest():
        raise CheckpointError(
            f"what is to be loaded takes {nbytes} bytes of new memory, and this machine has {largest()}.\n"
            "  fix: load a part of it (`into`), or on more workers."
        )
