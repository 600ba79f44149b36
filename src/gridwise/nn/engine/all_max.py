"""The element-wise maximum over a team: an agreed bound, not an operator; no gradient flows through it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...comm.graph_breaks import capturing
from ...comm.transports.base import Team, Transport


def all_max(x: Tensor, transport: Transport, team: Team, what: str) -> Tensor:
    """The element-wise maximum of the team's tensors, on every worker of the team.

    The control channel compares integers. The bits of floating-point numbers, read as integers, are ordered like the
    numbers once the bits below the sign are flipped in negative ones; flipping them again restores the number.
    """
    if (capture := capturing()) is not None:
        return capture.run_between_graphs(lambda: _found(x, transport, team, what))
    return _found(x, transport, team, what)


def _found(x: Tensor, transport: Transport, team: Team, what: str) -> Tensor:
    if x.is_meta:  # in a plan: the message counts, there is nothing to compare
        transport.all_max(np.zeros(x.numel(), dtype=np.int64), team, what)
        return x.detach().clone()
    bits = x.detach().double().cpu().contiguous().view(torch.int64)
    ordered = np.ascontiguousarray(_turned_over(bits).numpy())
    transport.all_max(ordered, team, what)
    return _turned_over(torch.from_numpy(ordered)).view(torch.float64).view(x.shape).to(x)


def _turned_over(bits: Tensor) -> Tensor:
    return torch.where(bits < 0, bits ^ torch.iinfo(torch.int64).max, bits)
