"""The element-wise maximum over a team: an agreed bound, not an operator; no gradient passes it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...comm.graph_breaks import capturing
from ...comm.transports.base import Team, Transport


def all_max(x: Tensor, transport: Transport, team: Team, what: str) -> Tensor:
    """The largest of the team's values, element by element, on all of it.

    The control channel compares integers. Those with the bits of floating-point numbers are ordered as these are, once
    the bits below the sign of the negative ones are turned over; turning them over again leads back.
    """
    if (breaks := capturing()) is not None:
        return breaks.moved(lambda: _found(x, transport, team, what))
    return _found(x, transport, team, what)


def _found(x: Tensor, transport: Transport, team: Team, what: str) -> Tensor:
    if x.is_meta:  # in a plan: counted, and nothing to compare
        transport.all_max(np.zeros(x.numel(), dtype=np.int64), team, what)
        return x.detach().clone()
    bits = x.detach().double().cpu().contiguous().view(torch.int64)
    ordered = np.ascontiguousarray(_turned_over(bits).numpy())
    transport.all_max(ordered, team, what)
    return _turned_over(torch.from_numpy(ordered)).view(torch.float64).view(x.shape).to(x)


def _turned_over(bits: Tensor) -> Tensor:
    return torch.where(bits < 0, bits ^ torch.iinfo(torch.int64).max, bits)
