"""Norms of blocks as functions, over the workers that share their sets; called by the layers and by the models' rules.

    batch norm       a set = a channel, in all samples
    instance norm    a set = a channel of one sample
    group norm       a set = a group of channels of one sample
    layer norm       a set = all elements of the last dims, at one place of the leading ones

Statistics and sums are in float32 for half precision. Weight and bias are those of this worker's channels.

Batch norm over several workers on CUDA uses the fused kernels of `torch.nn.SyncBatchNorm`:

    forward     statistics of the block ──► one message: (mean, 1/std) of every worker ──► merged, normalised
    backward    sums of dy and dy (x - mean) ──► one message: their sums over the workers ──► dx

The host never waits for the device. Every worker must have elements; where some have none, `standardise` is used.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...operators.formats import wide
from ..engine.autocast import dtype_after
from ..engine.copy_and_sum import AllSum
from ..engine.operator import meet, prepare
from .standardise import Normalisation, Running, differentiable, normalise

Parameter = Tensor | None
LARGE = 1 << 15
"""Elements per sample and channel from which merging statistics per sample is faster (H200: 61 instead of 416 us)."""


def batch_norm(
    x: Tensor, weight: Parameter, bias: Parameter, running: Running, how: Normalisation, is_filled: bool
) -> Tensor:
    """Normalise by the statistics of the batch, and update `running`; `is_filled`: whether all workers have elements.

    On CUDA, torch's fused kernels are used: those of batch norm on one worker, those of SyncBatchNorm on several.
    """
    if x.is_cuda and is_filled:
        if len(how.sets.members) > 1:
            return _SyncBatchNorm.apply(x, weight, bias, how.anchor(x, weight, bias), running, how)
        mean, var = (None if each is None else each.clone() for each in running[:2])  # autograd keeps them as they are
        y = F.batch_norm(x, mean, var, weight, bias, True, running.momentum, how.eps)
        running.become(mean, var)
        return y
    values = wide(x)
    statistics = _of_channels(how.sets.moments(values))
    follow(running, *statistics, how.sets.count)
    return normalise(values, _like(values, weight), _like(values, bias), statistics, how).to(x.dtype)


def instance_norm(
    x: Tensor,
    weight: Parameter,
    bias: Parameter,
    running: Running,
    how: Normalisation,
    over_samples: AllSum,
    samples: int,
) -> Tensor:
    """Normalise by sample and channel; update `running` by the mean over all `samples`, summed by `over_samples`."""
    values = wide(x)
    rows = values.reshape(1, x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
    statistics = _of_channels(how.sets.moments(rows))
    if running.mean is not None:
        totals = over_samples(torch.stack([each.view(x.shape[:2]).sum(0) for each in statistics]) / samples)
        follow(running, totals[0], totals[1], how.sets.count)
    weight, bias = (_for_samples(len(x), _like(values, parameter)) for parameter in (weight, bias))
    return normalise(rows, weight, bias, statistics, how).view(x.shape).to(x.dtype)


def group_norm(x: Tensor, weight: Parameter, bias: Parameter, how: Normalisation) -> Tensor:
    """Normalise by the statistics of groups of channels (`Sets.in_groups`)."""
    values = wide(x)
    rows = values.reshape(1, x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
    weight, bias = (_for_samples(len(x), _like(values, parameter)) for parameter in (weight, bias))
    y = normalise(rows, weight, bias, how.sets.moments(rows), how).view(x.shape)
    return y.to(dtype_after(lambda one: torch.group_norm(one, 1), x))


def layer_norm(x: Tensor, lead: int, weight: Parameter, bias: Parameter, how: Normalisation) -> Tensor:
    """Normalise over all dims after the first `lead`; weight and bias have the shape of these dims of the block."""
    values = wide(x)
    rows = values.reshape(1, math.prod(x.shape[:lead]), math.prod(x.shape[lead:]))
    y = normalise(rows, None, None, how.sets.moments(rows), how).view(x.shape)
    weight, bias = _like(values, weight), _like(values, bias)
    if weight is not None:
        y = y * weight if bias is None else torch.addcmul(bias, y, weight)
    elif bias is not None:
        y = y + bias
    return y.to(dtype_after(lambda one: F.layer_norm(one, (1,)), x))


def by_running(
    x: Tensor, weight: Parameter, bias: Parameter, mean: Tensor | None, var: Tensor | None, eps: float
) -> Tensor:
    """Normalise by running statistics, for batch and instance norm."""
    if not x.numel():  # torch's backward would divide by zero; the parameters must stay connected
        return of_nothing(x, weight, bias)
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps).to(x.dtype)


def of_nothing(x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """The result for an `x` without elements, connected to the parameters."""
    along = (-1, *(1,) * (x.dim() - 2))
    y = x.clone() if weight is None else x * weight.view(along)
    return (y if bias is None else y + bias.view(along)).to(x.dtype)


def _of_channels(statistics: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance, which is infinite where finite numbers are too large to be squared, as in torch's batch norm.

    The sums of `standardise` become nan there, like torch's group norm.
    """
    mean, var = statistics
    return mean, var.nan_to_num(math.inf, math.inf).add_(mean, alpha=0)  # nan where the mean is none, too


@torch.no_grad()
def follow(running: Running, mean: Tensor, var: Tensor, count: int) -> None:
    """Update running statistics by those of a batch with `count` elements in each set."""
    var = var * (count / max(1, count - 1)) if running.is_corrected else var
    for follower, value in ((running.mean, mean), (running.var, var)):
        if follower is not None:
            follower.mul_(1 - running.momentum).add_(value, alpha=running.momentum)  # `lerp_` makes nan of infinity


def _like(values: Tensor, parameter: Parameter) -> Parameter:
    return None if parameter is None else parameter.to(values.dtype)


def _for_samples(samples: int, parameter: Parameter) -> Parameter:
    """A parameter per channel, repeated for each sample."""
    return parameter if parameter is None or samples == 1 else parameter.repeat(samples)


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        anchor: Tensor | None,
        running: Running,
        how: Normalisation,
    ) -> Tensor:
        dense, sets, eps = _dense(x), how.sets, how.eps
        mean, inverse = _statistics(dense, eps)
        channels = x.shape[1]
        counts, ctx.counts = sets.counts(x.device)
        table = mean.new_empty((len(counts), 2 * channels))
        mine = torch.cat((mean, inverse), out=table[sets.members.index(sets.transport.rank)])
        means, inverses = sets.transport.all_gather(mine, sets.members, sets.name, table).split(channels, 1)
        counts = counts if counts.dtype == mean.dtype else counts.to(mean.dtype)
        mean, inverse = torch.batch_norm_gather_stats_with_counts(dense, means, inverses, *running[:3], eps, counts)
        prepare(ctx, x, weight, bias)
        ctx.mean, ctx.inverse, ctx.how = mean, inverse, how
        return torch.batch_norm_elemt(dense, weight, bias, mean, inverse, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        how: Normalisation = ctx.how
        sets = how.sets
        if torch.is_grad_enabled():
            x, weight, bias, _ = ctx.saved_tensors
            return *differentiable(x, weight, bias, dy, how), None, None, None
        x, weight, bias = meet(ctx, sets.transport, sets.team, sets.adjoint_name, how.call_id.differentiated())
        dense, dy = _dense(x), _dense(dy)
        found = torch.batch_norm_backward_reduce(dy, dense, ctx.mean, ctx.inverse, weight, True, False, False)
        own = torch.stack(found[:2])  # sums of dy, and of dy (x - mean)
        sums = sets.transport.all_sum(own, sets.members, sets.adjoint_name)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.batch_norm_backward_elemt(dy, dense, ctx.mean, ctx.inverse, weight, sums[0], sums[1], ctx.counts)
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        of_bias, of_weight = own if how.shared is None else sums
        of_weight = (of_weight * ctx.inverse).to(weight.dtype) if needs_weight else None
        return dx, of_weight, of_bias.to(bias.dtype) if needs_bias else None, None, None, None


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/std of each channel of the block.

    Torch's kernel uses one thread block per channel, so few large channels leave most of the device idle. Their
    statistics are computed sample by sample and merged.
    """
    elements = math.prod(x.shape[2:])
    large = x.dtype in (torch.float32, torch.float64) and x.is_contiguous() and elements >= LARGE
    if not large:
        return torch.batch_norm_stats(x, eps)
    var, mean = torch.var_mean(x.flatten(2), 2, correction=0)
    counts = mean.new_full((len(x),), elements)
    return torch.batch_norm_gather_stats_with_counts(x, mean, (var + eps).rsqrt_(), None, None, 0.0, eps, counts)


def _dense(x: Tensor) -> Tensor:
    """`x` in a memory format that the kernels support: contiguous, or channels last."""
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if x.dim() in (4, 5) and x.is_contiguous(memory_format=last) and x.shape[1] > 1:
        return x
    return x.contiguous()
