"""``view(-1, ...)`` of a tensor whose samples do not hold a whole number of the new rows: rows that cross blocks move.

    samples    |. . .|. . .|. . .|. . .|      (4, 3) cut along the first dim
    rows       |. . . .|. . . .|. . . .|      (3, 4)

Cut along the first dim alone, the elements of a block are consecutive, in the old shape and in the new. So this is a
movement between two cuts of a line.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ...errors import PartitionError
from ...grid import Grid, Layout, Needs, balanced_cuts, route
from ...grid.cuts import scaled
from ..engine.agreement import agree_layout
from ..engine.carrier import Move
from .moves import Rearranged


class Regrouped(Rearranged):
    """``x.view(-1, *rest)`` of the global tensor, in balanced blocks; only the first dim of `x` is cut."""

    def _structure_of(self, input: tuple) -> Hashable:
        return super()._structure_of(input), tuple(input[1])

    def _distdl_module_setup(self, input: tuple) -> None:
        assert self._transport is not None
        x, rest = input
        layout, agreed = agree_layout(self._transport, self._team, self._says, self.P_x.grid, x)
        sample, row = math.prod(layout.global_shape[1:]), math.prod(rest)
        count = layout.global_shape[0] * sample
        if row < 1 or count % row:
            shape = layout.global_shape
            raise PartitionError(f"{self._says}: a tensor of shape {shape} has no view of shape {(-1, *rest)}.")
        line = Grid(self.P_x.ranks, (self.P_x.size,))
        source = Layout(line, (scaled(layout.cuts[0], sample),))
        target = scaled(balanced_cuts(count // row, line.size), row)
        needs = Needs(line, (tuple(pairwise(target)),), (False,))
        plan = route(source, needs, self._transport.rank)
        self._fetch = Move(self._transport, self._team, self._says, plan, torch.clone)
        self._rows = needs.intervals[0][line.index_of(self._transport.rank)[0]]
        self._records = agreed.requires_grad

    def forward(self, x: Tensor, rest: Sequence[int]) -> Tensor:
        start, stop = self._rows
        return self._move(x.reshape(-1), self._fetch, self._records).reshape((stop - start) // math.prod(rest), *rest)
