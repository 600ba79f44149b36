"""The operators behind copies and sums of whole tensors: one worker to a team, a team to one, a team to all of it.

    Copy      y_j = x_i        for every target j of source i (`grid.Copies`);   adjoint: Sum
    Sum       y_i = sum_j x_j                                                     adjoint: Copy
    AllSum    y_j = sum_k x_k  over the team of j;                                self-adjoint

A worker may be the source of one team and a target of another. All workers go through their teams in the order of the
sources, so they cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Copies
from .operator import Operator


class Copy(Operator):
    """Copy each source worker's tensor to its targets. `shape` is that of the copy received here, None without one."""

    def __init__(
        self,
        transport: Transport,
        team: Team,
        name: str,
        copies: Copies,
        shape: tuple[int, ...] | None,
        nothing: Callable[[Tensor], Tensor],
        source_shape: tuple[int, ...] | None,
    ) -> None:
        super().__init__(transport, team, name)
        self.copies, self.shape, self.nothing, self.source_shape = copies, shape, nothing, source_shape
        self.teams = copies.teams_of(transport.rank)

    @property
    def adjoint(self) -> Sum:
        return Sum(self)

    def __call__(self, x: Tensor) -> Tensor:
        me = self.transport.rank
        wanted = self.copies.source_of(me) if self.shape is not None else None
        y = self.nothing(x) if wanted is None else None
        for owner, members in self.teams:
            if owner == me:
                tensor = x.clone(memory_format=torch.contiguous_format) if wanted == me else x.contiguous()
            else:
                assert self.shape is not None
                tensor = torch.empty(self.shape, dtype=x.dtype, device=x.device)
            if len(members) > 1:
                self.transport.copy_from(tensor, owner, members, self.name)
            if owner == wanted:
                y = tensor
        assert y is not None
        return y


class Sum(Operator):
    """The adjoint of `Copy`: sum the targets' tensors at their source."""

    def __init__(self, forth: Copy) -> None:
        super().__init__(forth.transport, forth.team, f"the adjoint of {forth.name}")
        self.forth = forth

    @property
    def adjoint(self) -> Copy:
        return self.forth

    def __call__(self, y: Tensor) -> Tensor:
        forth, me = self.forth, self.transport.rank
        mine = forth.copies.source_of(me) if forth.shape is not None else None
        x = forth.nothing(y) if forth.source_shape is None else None
        for owner, members in forth.teams:
            if mine == owner:
                part = y
            else:
                assert forth.source_shape is not None
                part = torch.zeros(forth.source_shape, dtype=y.dtype, device=y.device)
            if len(members) > 1:
                total = self.transport.sum_to(part, owner, members, self.name)
            else:
                total = part.clone(memory_format=torch.contiguous_format)
            if owner == me:
                x = total
        assert x is not None
        return x


class AllSum(Operator):
    """Sum over a team and leave the sum on all of it; its own adjoint."""

    def __init__(self, transport: Transport, team: Team, name: str, summed: Team) -> None:
        super().__init__(transport, team, name)
        self.summed = summed

    @property
    def adjoint(self) -> AllSum:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.summed) == 1:
            return x.clone(memory_format=torch.contiguous_format)
        return self.transport.all_sum(x, self.summed, self.name)
