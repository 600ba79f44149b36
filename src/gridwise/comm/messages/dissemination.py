"""Dissemination of small data from all workers to all: after step k each has the data of 2**(k + 1), itself included.

So each worker sends log2(n) messages, and none is a bottleneck. Used by workers of one machine (`node`), and over gloo,
whose own collectives go round a ring of all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

Swap = Callable[[int, Tensor, int, Tensor], None]
"""Called with (target, tensor, source, into): sends a tensor and receives another; both are contiguous."""


def messages(workers: int) -> int:
    """The number of messages that each of `workers` workers sends."""
    return (workers - 1).bit_length()


def all_max(values: np.ndarray, team: Sequence[int], me: int, swap: Swap) -> None:
    """Replace the int64 array by its element-wise maximum over the team."""
    mine, theirs = torch.from_numpy(values), np.empty_like(values)
    heard = torch.from_numpy(theirs)
    for ahead, behind, _ in _steps(team, me):
        swap(ahead, mine, behind, heard)
        np.maximum(values, theirs, out=values)


def all_gather(row: Tensor, team: Sequence[int], me: int, swap: Swap, table: Tensor | None = None) -> Tensor:
    """The flat rows of the team's workers, of one length, in its order; may use `table`, which already holds `row`."""
    place = team.index(me)
    if len(team) == 2:
        other = 1 - place
        if table is None:
            table = row.new_empty((2, row.numel()))
            table[place] = row
        swap(team[other], row, team[other], table[other])
        return table
    rows = row.new_empty((len(team), row.numel()))
    rows[0] = row
    for ahead, behind, far in _steps(team, me):
        count = min(far, len(team) - far)
        swap(behind, rows[:count], ahead, rows[far : far + count])
    return rows.roll(place, 0)


def _steps(team: Sequence[int], me: int) -> Iterator[tuple[int, int, int]]:
    """For each step: the worker ahead in the team's ring, the worker behind, and their distance."""
    place, n = team.index(me), len(team)
    far = 1
    while far < n:
        yield team[(place + far) % n], team[(place - far) % n], far
        far *= 2
