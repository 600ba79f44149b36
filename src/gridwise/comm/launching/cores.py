"""A worker's share of the processor cores, for its own threads.

Each core that a worker may run on is divided among all workers of the machine that may run there too: four workers on the
same 16 cores get 4 each, and so do four workers that are bound to 4 cores each.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction


def usable() -> set[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(usable())


def described() -> bytes:
    """This worker's machine and cores, encoded for the other workers."""
    return json.dumps([socket.gethostname(), sorted(usable())]).encode()


def machine(said: bytes) -> str:
    """The machine's name in a worker's `described` bytes."""
    return str(json.loads(said)[0])


def share(everyone: Sequence[bytes], rank: int) -> int:
    """The number of cores for worker `rank`, at least 1, given the `described` bytes of all workers."""
    workers = [json.loads(said) for said in everyone]
    here, mine = workers[rank]
    users = Counter(core for host, used in workers if host == here for core in used)
    return max(1, int(sum(Fraction(1, users[core]) for core in mine)))
