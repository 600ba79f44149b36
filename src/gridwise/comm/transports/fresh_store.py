"""torchrun's store under keys that no earlier start of the job has used.

With `--max-restarts`, torchrun keeps one store for all starts of a job, and torch uses the same keys at each: a worker that
is started again may read the address of one that is dead, and cannot connect. So the workers of a start agree on a prefix:

    worker 0       writes a name, "call"                    waits for answers to it     writes them under "go NAME"
    each worker    answers the call that it sees, again     until its answer is under "go NAME"
                   whenever that changes

Every answer has a number that was drawn for it, so neither a call nor an answer nor a "go" of an earlier start is taken for
one of this start. torch's count of restarts would not do: machines count their own.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from ...errors import TransportError

ROOT = "gridwise start"
LOOK_SECONDS = 0.02


def may_be_used(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the store that torchrun names may hold what an earlier start has written."""
    is_kept = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return is_kept and environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def fresh(store: Store, rank: int, size: int, seconds: float) -> Store:
    """The store under a prefix that all workers of this start agree on, and that no earlier one has used."""
    deadline = time.monotonic() + seconds
    own_number = secrets.token_hex(8)
    below = PrefixStore(ROOT, store)
    if rank == 0:
        below.set("call", secrets.token_hex(8))
    name = answered = ""
    while True:
        if below.check(["call"]):
            name = below.get("call").decode()
        if name != answered:
            below.set(f"answer {rank}", json.dumps([name, own_number]))
            answered = name
        if rank == 0:
            _let_go(below, name, size)
        if below.check([f"go {name}"]) and own_number in json.loads(below.get(f"go {name}")):
            return PrefixStore(name, below)
        if time.monotonic() > deadline:
            raise TransportError(
                f"not all of the {size} workers that torchrun has started came within {seconds:.0f} s (`GRIDWISE_TIMEOUT`).",
                fix="all of them call gridwise.world().",
            )
        time.sleep(LOOK_SECONDS)


def _let_go(below: PrefixStore, name: str, size: int) -> None:
    """Write all numbers of the answers to this call once there are as many as workers."""
    keys = [f"answer {rank}" for rank in range(size)]
    if not below.check(keys):
        return
    answers = [json.loads(answer) for answer in below.multi_get(keys)]
    if all(to == name for to, _ in answers):
        below.set(f"go {name}", json.dumps([number for _, number in answers]))
