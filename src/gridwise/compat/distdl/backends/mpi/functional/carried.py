"""An operator of Gridwise under autograd, between workers that know nothing but the two teams they are in.

Layers of Gridwise agree with all their workers before anything is sent. DistDL's functions cannot: whoever calls one has
made the partitions, and promises that all workers in them call it too.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gridwise.nn.engine.copy_and_sum import Copy
from gridwise.nn.engine.operator import Operator
from gridwise.partition import zero_volume_tensor

from ..partition import MPIPartition

Shape = tuple[int, ...]


class Teams:
    """What `gridwise.grid.Copies` says of one worker, read off its two partitions: the owner comes first in each."""

    def __init__(self, to_others: MPIPartition, from_owner: MPIPartition) -> None:
        active = [each for each in (to_others, from_owner) if each.active]
        self._teams = tuple(sorted({(each.ranks[0], tuple(sorted(each.ranks))) for each in active}))
        self._owner = from_owner.ranks[0] if from_owner.active else None

    def teams_of(self, rank: int) -> tuple[tuple[int, Shape], ...]:
        return self._teams

    def source_of(self, rank: int) -> int | None:
        return self._owner


def copy_between(
    name: str, to_others: MPIPartition, from_owner: MPIPartition, copied: Any, original: Any, preserve_batch: bool
) -> Copy:
    """The copy of an owner's tensor, `original`, to its team, where it is `copied`: structures, as far as known here."""
    teams: Any = Teams(to_others, from_owner)

    def nothing(x: Tensor) -> Tensor:
        batch = x.shape[0] if preserve_batch and x.dim() else None
        return zero_volume_tensor(batch, dtype=x.dtype, device=x.device)

    transport = to_others.transport
    here = _shape(copied) if from_owner.active else None
    there = _shape(original) if to_others.active else None
    return Copy(transport, transport.everyone, name, teams, here, nothing, there)


def _shape(structure: Any) -> Shape:
    return tuple(int(n) for n in structure.shape)


def carried(x: Tensor, operator: Operator, structure: Any) -> Tensor:
    """`operator(x)`, with a gradient on all workers if `structure` says that the global tensor has one."""
    if structure.dtype is not None and not x.numel():
        x = x.to(structure.dtype)
    if not (structure.requires_grad or x.requires_grad):
        return operator(x.detach())
    anchor = None if x.requires_grad else torch.empty(0, requires_grad=True)
    return _Carried.apply(x, anchor, operator)


class TeamFunction:
    """Copies between the workers of two partitions, or sums: the same copies backwards."""

    sums: ClassVar[bool] = False

    @classmethod
    def apply(
        cls,
        input: Tensor,
        P_send: MPIPartition,
        P_recv: MPIPartition,
        preserve_batch: bool,
        input_tensor_structure: Any,
        output_tensor_structure: Any,
    ) -> Tensor:
        if not (P_send.active or P_recv.active):
            return input.clone()
        result = output_tensor_structure if P_recv.active else input_tensor_structure
        if cls.sums:
            structures = input_tensor_structure, output_tensor_structure
            copy = copy_between(f"the adjoint of {cls.__name__}", P_recv, P_send, *structures, preserve_batch)
            return carried(input, copy.adjoint, result)
        structures = output_tensor_structure, input_tensor_structure
        return carried(input, copy_between(cls.__name__, P_send, P_recv, *structures, preserve_batch), result)


class _Carried(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor | None, operator: Operator) -> Tensor:
        ctx.operator, ctx.shape = operator, x.shape
        return operator(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x = _Carried.apply(gradient, None, ctx.operator.adjoint)
        return (x if x.shape == ctx.shape else x.sum().expand(ctx.shape)), None, None
