"""The key of random numbers that do not depend on the grid: a function of a key and the global index of an element.

A worker computes the numbers of its block only (`operators.random.random_numbers`), and they are the same on any grid. Every
worker draws the key of a call from torch's generator, and the largest is used, so workers whose generators have diverged
still agree. Seeding torch therefore seeds these numbers, and restoring torch's generator (when resuming a run or
recomputing a checkpointed activation) restores them. While a step is captured as CUDA graphs, a key is a tensor on the
device whose number is drawn anew before every replay.
"""

from __future__ import annotations

from contextvars import ContextVar

import numpy as np
import torch

from ...comm.graph_breaks import capturing
from ...comm.transports.base import Team, Transport
from ...operators.random.random_numbers import Key

sequential: ContextVar[tuple[torch.Generator | None] | None] = ContextVar("sequential", default=None)
"""Set by `sequential_random`: a tuple with the generator to draw from (None: torch's own); None where indices decide."""


def draw_key(transport: Transport, team: Team, what: str) -> Key:
    """One number from torch's generator, the same on the whole team. A worker outside the team draws one too."""
    if (capture := capturing()) is not None:
        return capture.draw_each_replay(lambda: _drawn(transport, team, what))
    return _drawn(transport, team, what)


def _drawn(transport: Transport, team: Team, what: str) -> int:
    drawn = np.array([int(torch.empty((), dtype=torch.int64, device="cpu").random_())], dtype=np.int64)
    if transport.rank in team:
        transport.all_max(drawn, team, what)
    return int(drawn[0])
