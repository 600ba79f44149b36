"""How many processor cores a worker may count on, for threads of its own.

Those that it may run on, each shared with the workers of the same machine that may run there too: four workers on the same
16 cores have 4 each, and so have four workers that are bound to 4 cores each.
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
    """The processor cores that this process may use."""
    return len(usable())


def described() -> bytes:
    """What other workers have to know of this one: its machine, and its cores there."""
    return json.dumps([socket.gethostname(), sorted(usable())]).encode()


def machine(said: bytes) -> str:
    """The name of the machine in what a worker has `described`."""
    return str(json.loads(said)[0])


def share(everyone: Sequence[bytes], rank: int) -> int:
    """How many cores worker `rank` may count on, at least 1, by what all workers have `described`."""
    workers = [json.loads(said) for said in everyone]
    here, mine = workers[rank]
    users = Counter(core for host, used in workers if host == here for core in used)
    return max(1, int(sum(Fraction(1, users[core]) for core in mine)))
