"""Gradients of several parameters, summed over their sharers in one message that is under way while backward goes on.

    forward    parameters ──► ended ──► begun ──► the layers that use them        both are the identity
    backward   parameters ◄── ended ◄── begun ◄── the layers that use them        wait for the sum ◄── start it

Of all nodes whose gradients are complete autograd runs the one that was recorded last. `begin` is recorded right before the
first layer that uses one of the parameters: its backward follows that layer's. `end` counts as recorded before all else: its
backward comes when nothing else is left to do. Both are nodes of the graph, so hooks, accumulation, retained graphs and
`autograd.grad` see complete gradients only, and a parameter that no worker has used gets none, as in torch: the message says
how many workers used each. Gradients that are to be differentiated again are summed at once, by operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...comm.graph_breaks import read_by_host
from ...comm.messages.requests import Request
from ..engine.operator import Ticket, apply, meet, prepare
from .blocks import Shared

FULL = 1 << 22
"""Bytes at which a bucket of gradients, summed in one message, is closed."""


class GradientSum:
    """One sum in the graph of one call: what its two nodes share."""

    def __init__(self, operator: Shared, ticket: Ticket) -> None:
        self.operator, self.ticket = operator, ticket
        self.under_way: tuple[Request, Tensor] | None = None
        self.uses_all = False
        """Whether this worker has a gradient for each of the parameters."""


class _Ended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sum: GradientSum, *blocks: Tensor) -> tuple[Tensor, ...]:
        ctx.sum, ctx.shapes = sum, [block.shape for block in blocks]
        ctx.set_materialize_grads(False)
        return blocks

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        sum, shapes = ctx.sum, ctx.shapes
        if sum.under_way is None:  # made at once
            return None, *gradients
        (pending, flat), sum.under_way = sum.under_way, None
        pending.wait()
        return None, *_cut(flat, shapes, sum.uses_all)


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
        sum, ticket = ctx.sum, ctx.sum.ticket.differentiated()
        operator, shapes = sum.operator, [shape for shape, _, _ in ctx.likes]
        meet(ctx, operator.transport, operator.team, operator.name, ticket)
        parts, sum.uses_all = list[Tensor](), all(gradient is not None for gradient in gradients)
        for gradient, (shape, dtype, device) in zip(gradients, ctx.likes, strict=True):
            if gradient is None:
                gradient = torch.zeros((), dtype=dtype, device=device).expand(shape)
            parts.append(gradient.reshape(-1))
        if len(parts) > 1:
            used = parts[0].new_ones(len(gradients))
            for place, gradient in enumerate(gradients):
                if gradient is None:
                    used[place].zero_()  # by the device: a list of numbers would have to be copied there
            parts.append(used)
        if torch.is_grad_enabled():
            flat = torch.cat(parts) if len(parts) > 1 else parts[0]
            sum.under_way = None
            return None, *_cut(apply(flat, operator.adjoint, ticket, True), shapes, sum.uses_all)
        flat = torch.cat(parts)  # fresh, and of one alone a copy
        sum.under_way = operator.adjoint.begin(flat), flat
        views = flat.split([part.numel() for part in parts])[: len(shapes)]
        return None, *(view.view(shape) for view, shape in zip(views, shapes, strict=True))


def _cut(total: Tensor, shapes: Sequence[torch.Size], uses_all: bool) -> list[Tensor | None]:
    """The gradient of each block from the sum of all; None where no worker has used it.

    Who has used all of them itself need not look at what the device has counted.
    """
    if len(shapes) == 1:
        return [total.view(shapes[0])]
    *sums, counts = total.split([*[shape.numel() for shape in shapes], len(shapes)])
    known = uses_all or counts.is_meta  # meta tensors cannot tell
    uses = [1.0] * len(shapes) if known else read_by_host(counts.tolist)
    return [part.view(shape) if count else None for part, count, shape in zip(sums, uses, shapes, strict=True)]


def end(blocks: Sequence[Tensor], sum: GradientSum) -> tuple[Tensor, ...]:
    """The blocks, by a node whose backward waits for the sum of their gradients, when nothing else is left to do."""
    ended = _Ended.apply(sum, *blocks)
    ended[0].grad_fn._set_sequence_nr(0)
    return ended


def begin(blocks: Sequence[Tensor], sum: GradientSum) -> tuple[Tensor, ...]:
    """The blocks, by a node whose backward starts summing their gradients; layers use what it returns."""
    return _Begun.apply(sum, *blocks)


def shared_together(blocks: Sequence[Tensor], operator: Shared, ticket: Ticket) -> tuple[Tensor, ...]:
    """The blocks, of one dtype, for use in a layer: their gradients are summed over the sharers in one message."""
    sum = GradientSum(operator.as_set(), ticket)
    return begin(end(blocks, sum), sum)
