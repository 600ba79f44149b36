"""DistDL's autograd functions: operators of Gridwise between workers that know only the two teams they are in.

A layer of Gridwise reaches agreement among all its workers before anything is sent. DistDL's functions cannot: the
caller has made the partitions and guarantees that all workers in them call the function. All are called by `apply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from gridwise.grid import Copies
from gridwise.nn.engine.copy_and_sum import Copy
from gridwise.nn.engine.operator import Operator
from gridwise.nn.primitives.all_sum_reduce import AllSumReduce
from gridwise.partition import Partition, zero_volume_tensor

from ....utilities.torch import TensorStructure
from ..partition import MPICartesianPartition, MPIPartition, plain

Shape = tuple[int, ...]


class Teams:
    """What `gridwise.grid.Copies` knows about one worker, from its two partitions; the owner is first in each."""

    def __init__(self, to_others: MPIPartition, from_owner: MPIPartition) -> None:
        active = [each for each in (to_others, from_owner) if each.active]
        self._teams = tuple(sorted({(each.ranks[0], tuple(sorted(each.ranks))) for each in active}))
        self._owner = from_owner.ranks[0] if from_owner.active else None

    def teams_of(self, rank: int) -> tuple[tuple[int, Shape], ...]:
        return self._teams

    def source_of(self, rank: int) -> int | None:
        return self._owner


def carried(x: Tensor, operator: Operator, structure: TensorStructure) -> Tensor:
    """`operator(x)`, differentiable on all workers if `structure` says that the global tensor requires a gradient."""
    if structure.dtype is not None and not x.numel():
        x = x.to(structure.dtype)
    if not (structure.requires_grad or x.requires_grad):
        return operator(x.detach())
    anchor = None if x.requires_grad else torch.empty(0, requires_grad=True)
    return _Carried.apply(x, anchor, operator)


class TeamFunction:
    """Copies between the workers of two partitions, or their adjoint: sums."""

    sums: ClassVar[bool] = False

    @classmethod
    def apply(
        cls,
        input: Tensor,
        P_send: MPIPartition,
        P_recv: MPIPartition,
        preserve_batch: bool,
        input_tensor_structure: TensorStructure,
        output_tensor_structure: TensorStructure,
    ) -> Tensor:
        if not (P_send.active or P_recv.active):
            return input.clone()
        of_result = output_tensor_structure if P_recv.active else input_tensor_structure
        to_others, from_owner, name = P_send, P_recv, cls.__name__
        original, copied = input_tensor_structure, output_tensor_structure
        if cls.sums:
            to_others, from_owner, name = P_recv, P_send, f"the adjoint of {name}"
            original, copied = copied, original

        def nothing(x: Tensor) -> Tensor:
            batch = x.shape[0] if preserve_batch and x.dim() else None
            return zero_volume_tensor(batch, dtype=x.dtype, device=x.device)

        transport, teams = to_others.transport, cast(Copies, Teams(to_others, from_owner))
        shapes = (tuple(map(int, copied.shape)) if from_owner.active else None), nothing
        there = tuple(map(int, original.shape)) if to_others.active else None
        copy = Copy(transport, transport.everyone, name, teams, *shapes, there)
        return carried(input, copy.adjoint if cls.sums else copy, of_result)


class BroadcastFunction(TeamFunction):
    """Copies from a team's first worker to the whole team; takes the partitions of `create_broadcast_partition_to`."""


class SumReduceFunction(TeamFunction):
    """Sums over a team to its first worker; takes the partitions of `create_reduction_partition_to`."""

    sums = True


class AllSumReduceFunction:
    """The sum over all workers of a partition, on each of them."""

    @staticmethod
    def apply(input: Tensor, P_allreduce: Partition, *structures: object) -> Tensor:
        P = plain(P_allreduce)
        return AllSumReduce(P, axes_reduce=range(P.dim))(input) if P.active else input.clone()


class HaloExchangeFunction:
    """Fills the halos of a padded block in place; `slices` are those of a `HaloExchange`."""

    @staticmethod
    def apply(
        input: Tensor,
        P_x: MPICartesianPartition,
        slices: Sequence[Sequence[Sequence[slice]]] | None,
        buffers: object = None,
        neighbor_ranks: object = None,
    ) -> Tensor:
        from ....nn.halo_exchange import HaloExchange

        widths = None
        if P_x.active and slices is not None:
            widths = [
                [len(range(*ghost[d].indices(n))) for ghost in (of[1], of[3])]
                for d, (of, n) in enumerate(zip(slices, input.shape, strict=True))
            ]
        return HaloExchange(P_x, widths)(input)


class RepartitionFunction:
    """Moves blocks of one grid to balanced blocks of another; works out the messages itself, without the overlaps."""

    @staticmethod
    def apply(
        input: Tensor,
        P_union: object,
        x_global_structure: object,
        x_local_structure: object,
        y_local_structure: object,
        P_x: MPICartesianPartition,
        P_x_to_y_overlaps: object,
        P_x_to_y_buffers: object,
        P_y: MPICartesianPartition,
        P_y_to_x_overlaps: object,
        P_y_to_x_buffers: object,
        preserve_batch: bool,
    ) -> Tensor:
        from ....nn.primitives import Repartition

        return Repartition(P_x, P_y, preserve_batch)(input)


class _Carried(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor | None, operator: Operator) -> Tensor:
        ctx.operator, ctx.shape = operator, x.shape
        return operator(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x = _Carried.apply(gradient, None, ctx.operator.adjoint)
        return (x if x.shape == ctx.shape else x.sum().expand(ctx.shape)), None, None
