"""Batch norm over several workers on CUDA, by the fused kernels that `torch.nn.SyncBatchNorm` is made of.

    forward     statistics of the block ──► one message: (mean, 1/std, count) of every worker ──► merged, normalised
    backward    sums of dy and dy (x - mean) ──► one message: their sums over the workers ──► dx

Nothing waits for the device. Every worker must have elements; where some have none, `standardise` serves.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..engine.operator import Ticket, anchor_unless, meet, prepare
from .standardise import Sets, SharedValue, differentiable

LARGE = 1 << 15
"""Elements of a channel of a sample from which statistics of samples, merged, are faster (an H200: 61 for 416 us)."""

Running = tuple[Tensor | None, Tensor | None, float]
"""Running mean and variance, which follow the statistics of this batch, and by how much."""


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        anchor: Tensor | None,
        running: Running,
        eps: float,
        sets: Sets,
        ticket: Ticket,
        shared: SharedValue | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dense = _dense(x)
        mean, inverse = _statistics(dense, eps)
        channels = x.shape[1]
        mine = torch.cat([mean, inverse, mean.new_full((1,), x.numel() // channels)])
        table = sets.transport.all_gather(mine, sets.members, sets.name)
        counts = table[:, -1]
        mean, inverse = torch.batch_norm_gather_stats_with_counts(
            dense, table[:, :channels], table[:, channels : 2 * channels], *running, eps, counts
        )
        prepare(ctx, x, weight, bias)
        ctx.mean, ctx.inverse, ctx.counts = mean, inverse, counts
        ctx.eps, ctx.sets, ctx.ticket, ctx.shared = eps, sets, ticket, shared
        ctx.mark_non_differentiable(mean, inverse)
        return torch.batch_norm_elemt(dense, weight, bias, mean, inverse, eps), mean, inverse

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: object) -> tuple[Tensor | None, ...]:
        sets = ctx.sets
        if torch.is_grad_enabled():
            x, weight, bias, _ = ctx.saved_tensors
            return *differentiable(x, weight, bias, dy, ctx.eps, sets, ctx.ticket, ctx.shared), *(None,) * 6
        name = f"the adjoint of {sets.name}"
        x, weight, bias = meet(ctx, sets.transport, sets.team, name, ctx.ticket.differentiated())
        dense, dy = _dense(x), _dense(dy)
        plain, aligned = torch.batch_norm_backward_reduce(dy, dense, ctx.mean, ctx.inverse, weight, True, False, False)[
            :2
        ]
        own = torch.stack([plain, aligned])
        sums = sets.transport.all_sum(own, sets.members, name)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.batch_norm_backward_elemt(
                dy, dense, ctx.mean, ctx.inverse, weight, sums[0], sums[1], ctx.counts.to(torch.int32)
            )
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        of_bias, of_weight = own if ctx.shared is None else sums
        of_weight = (of_weight * ctx.inverse).to(weight.dtype) if needs_weight else None
        return dx, of_weight, of_bias.to(bias.dtype) if needs_bias else None, *(None,) * 6


def sync_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Running,
    eps: float,
    sets: Sets,
    ticket: Ticket,
    records: bool,
    shared: SharedValue | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``x`` normalised over all members of the sets, and the mean and 1/std by which it was.

    With `shared` the gradients of weight and bias are complete, summed over the members; without, they are this worker's.
    """
    anchor = anchor_unless(not records or any(t is not None and t.requires_grad for t in (x, weight, bias)))
    return _SyncBatchNorm.apply(x, weight, bias, anchor, running, eps, sets, ticket, shared)


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/std of each channel of the block.

    Torch's kernel has one block of threads for each channel: of few large ones most of the device stands idle, so these
    are taken sample by sample, and merged.
    """
    elements = math.prod(x.shape[2:])
    large = x.dtype in (torch.float32, torch.float64) and x.is_contiguous() and elements >= LARGE
    if not large:
        return torch.batch_norm_stats(x, eps)
    var, mean = torch.var_mean(x.flatten(2), 2, correction=0)
    counts = mean.new_full((len(x),), elements)
    return torch.batch_norm_gather_stats_with_counts(x, mean, (var + eps).rsqrt_(), None, None, 0.0, eps, counts)


def _dense(x: Tensor) -> Tensor:
    """`x` in an order of its elements that the kernels know: contiguous, or channels last."""
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if x.dim() in (4, 5) and x.is_contiguous(memory_format=last) and x.shape[1] > 1:
        return x
    return x.contiguous()
