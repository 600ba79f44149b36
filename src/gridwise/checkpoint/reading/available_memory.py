"""Check that there is memory for what a checkpoint claims to hold, before any is allocated.

A huge sparse file costs its writer nothing, and a load that fills new memory from it runs out of memory long after the
allocation has succeeded.
"""

from __future__ import annotations

from ...errors import CheckpointError
from ...memory_sizes import largest


def check_new(nbytes: int) -> None:
    """Raise if a load would have to allocate more bytes than there are."""
    if nbytes > largest():
        raise CheckpointError(
            f"what is to be loaded takes {nbytes} bytes of new memory, and this machine has {largest()}.\n"
            "  fix: load a part of it (`into`), or on more workers."
        )
