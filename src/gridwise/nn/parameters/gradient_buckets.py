"""Gradients of several parameters, summed over their replicas in one message that is in flight while backward goes on.

    forward    parameters ──► ended ──► begun ──► the layers that use them        both are the identity
    backward   parameters ◄── ended ◄── begun ◄── the layers that use them        wait for the sum ◄── start it

Of all nodes that are ready, autograd runs the one that was recorded last. `begin` is recorded right before the first
layer that uses one of the parameters, so its backward follows that layer's. `end` is marked as recorded before
everything else, so its backward runs when nothing else is left to do. Both are nodes of the graph, so hooks,
accumulation, retained graphs and `autograd.grad` see complete gradients only. A parameter that no worker has used gets
no gradient, as in torch: the message also counts the workers that used each. Under `create_graph` gradients are summed
at once, by an operator that can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ...comm.graph_breaks import read_by_host
from ...comm.messages.requests import Request
from ...torch_internals.autograd import flattened, run_last, unflattened
from ..engine.operator import CallId, apply, meet, prepare
from .blocks import ReplicatedBlock
from .no_sync import note_partial, sums_gradients, take_partial

FULL = 1 << 22
"""Bytes at which a bucket of gradients, summed in one message, is closed."""


class GradientSum:
    """The state that the two nodes of one sum share, in the graph of one call."""

    def __init__(self, operator: ReplicatedBlock, call_id: CallId, parameters: Sequence[Tensor] = ()) -> None:
        self.operator, self.call_id = operator, call_id
        self.parameters = parameters if all(parameter.is_leaf for parameter in parameters) else ()
        """Those whose `.grad` may hold this worker's part only (`no_sync`)."""
        self.is_left_out = bool(self.parameters) and not sums_gradients()
        self.under_way: tuple[Request, Tensor] | None = None
        self.uses_all = False
        """Whether this worker has a gradient for each of the parameters."""


class _Ended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sum: GradientSum, *blocks: Tensor) -> tuple[Tensor, ...]:
        ctx.sum = sum
        ctx.set_materialize_grads(False)
        return blocks

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        sum = ctx.sum
        if sum.is_left_out:
            note_partial([p for p, gradient in zip(sum.parameters, gradients, strict=True) if gradient is not None])
        if sum.under_way is None:  # left out, or summed at once by `_Begun`
            return None, *gradients
        (pending, flat), sum.under_way = sum.under_way, None
        pending.wait()
        return None, *_cut(flat, cast(Sequence[Tensor], gradients), sum.uses_all)  # `_Begun` returns them all


class _Begun(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sum: GradientSum, *blocks: Tensor) -> tuple[Tensor, ...]:
        ctx.sum = sum
        prepare(ctx)
        ctx.likes = [(block.shape, block.dtype, block.device) for block in blocks]
        ctx.set_materialize_grads(False)
        return blocks

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        sum, call_id = ctx.sum, ctx.sum.call_id.differentiated()
        operator = sum.operator
        meet(ctx, operator.transport, operator.team, operator.name, call_id)
        if sum.is_left_out:
            return None, *gradients
        gradients = _with_parts(gradients, sum.parameters)
        blocks, sum.uses_all = list[Tensor](), all(gradient is not None for gradient in gradients)
        for gradient, (shape, dtype, device) in zip(gradients, ctx.likes, strict=True):
            if gradient is None:
                gradient = torch.zeros((), dtype=dtype, device=device).expand(shape)
            blocks.append(gradient)
        parts = list(blocks)
        if len(blocks) > 1:
            used = blocks[0].new_ones(len(gradients))
            for place, gradient in enumerate(gradients):
                if gradient is None:
                    used[place].zero_()  # on the device: a list of numbers would have to be copied to it
            parts.append(used)
        flat = flattened(parts)
        if torch.is_grad_enabled():
            sum.under_way = None
            return None, *_cut(apply(flat, operator.adjoint, call_id, True), blocks, sum.uses_all)
        sum.under_way = operator.adjoint.begin(flat), flat
        return None, *unflattened(flat, blocks)


def _with_parts(gradients: tuple[Tensor | None, ...], parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients, with the parts that backwards under `no_sync` have left in `.grad`."""
    if not parameters:
        return gradients
    pairs = zip(gradients, map(take_partial, parameters), strict=True)
    return tuple([g if part is None else part if g is None else g + part for g, part in pairs])


def _cut(total: Tensor, blocks: Sequence[Tensor], uses_all: bool) -> Sequence[Tensor | None]:
    """The gradient of each block from the sum of all; None where no worker has used it.

    A worker that has used all of them itself need not read the counts from the device.
    """
    sums = unflattened(total, blocks)
    if len(blocks) == 1 or uses_all or total.is_meta:  # meta tensors have no counts
        return sums
    uses = read_by_host(total[-len(blocks) :].tolist)
    return [part if count else None for part, count in zip(sums, uses, strict=True)]


def end(blocks: Sequence[Tensor], sum: GradientSum) -> tuple[Tensor, ...]:
    """The blocks, through a node whose backward waits for the sum of their gradients, when nothing else is left."""
    ended = _Ended.apply(sum, *blocks)
    run_last(ended[0].grad_fn)
    return ended


def begin(blocks: Sequence[Tensor], sum: GradientSum) -> tuple[Tensor, ...]:
    """The blocks, through a node whose backward starts summing their gradients; layers use the returned tensors."""
    return _Begun.apply(sum, *blocks)


def replicated_together(blocks: Sequence[Tensor], operator: ReplicatedBlock, call_id: CallId) -> tuple[Tensor, ...]:
    """The blocks, of one dtype, for use in a layer: their gradients are summed over the replicas in one message."""
    sum = GradientSum(operator.with_current_wire(), call_id)
    return begin(end(blocks, sum), sum)
