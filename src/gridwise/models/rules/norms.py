"""Norms: statistics over cut dims are few numbers, summed over the workers that share a set (`nn.standardise`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import PartitionError
from ...grid import Layout
from ...nn.engine.agreement import key_of
from ...nn.engine.autocast import dtype_after
from ...nn.engine.carrier import HALVES
from ...nn.engine.copy_and_sum import AllSum
from ...nn.engine.operator import Ticket
from ...nn.layers.standardise import Sets, standardise
from ...nn.layers.sync_batchnorm import Running, sync_batch_norm
from ..movement import Movement
from ..placement import Cut, Replicated, Want
from .call import Call, Placed
from .table import rule

RUNNING = ("running_mean", "running_var")


class ChannelTensors:
    """What a norm is given besides its input: whole on every worker, of which each uses its own channels."""

    def __init__(self, call: Call, layout: Layout, *names: str) -> None:
        self.names = [name for name in names if call[name] is not None]
        self.wants: list[Want] = [None, *[Replicated()] * len(self.names)]
        self.channels = call.block(layout).start[1], call.block(layout).stop[1]

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.names, tensors, strict=True))

    def own(self, tensors: Sequence[Tensor], *names: str) -> list[Tensor | None]:
        """This worker's channels of those named; None for what is not given."""
        given, (start, stop) = self.named(tensors), self.channels
        found = [given.get(name) for name in names]
        return [x if x is None or len(x) == stop - start else x.narrow(0, start, stop - start) for x in found]

    def affine(self, tensors: Sequence[Tensor], dtype: torch.dtype, samples: int = 1) -> list[Tensor | None]:
        """Weight and bias of this worker's channels, repeated for each of the `samples`."""
        found = [None if x is None else x.to(dtype) for x in self.own(tensors, "weight", "bias")]
        return [None if x is None else x.repeat(samples) for x in found] if samples != 1 else found


def _sets(call: Call, layout: Layout, axes: Sequence[int], count: int) -> Sets:
    members = tuple(sorted(layout.grid.team_along(call.workers.rank, axes)))
    return Sets(call.workers.transport, call.workers.team, call.name, members, count)


def _standardised(
    x: Tensor, affine: Sequence[Tensor | None], statistics: tuple[Tensor, Tensor], eps: float, sets: Sets
) -> Tensor:
    """By the given statistics; recorded if any of the tensors needs a gradient, which is alike on all workers."""
    records = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *affine))
    weight, bias = affine
    return standardise(x, weight, bias, statistics, eps, sets, Ticket(key_of(sets.name), 0), records)


def _values(x: Tensor) -> Tensor:
    """In a precision fit for statistics."""
    return x.float() if x.dtype in HALVES else x


def _by_running(call: Call, layout: Layout, given: ChannelTensors) -> Placed:
    """Normalised by the running statistics, which every worker has."""
    eps = call["eps"]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        weight, bias, mean, var = given.own(tensors, "weight", "bias", *RUNNING)
        if x.numel():
            return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
        # torch's backward of nothing divides by it; the parameters still take part in theirs
        along = (-1, *(1,) * (x.dim() - 2))
        y = x.clone() if weight is None else x * weight.view(along)
        return (y if bias is None else y + bias.view(along)).to(x.dtype)

    return Placed(Cut(layout), run, given.wants)


@rule("batch_norm")
def batch_norm(call: Call) -> Placed:
    """Statistics of the batch over all workers; running ones are updated alike on all of them."""
    x, layout = call.first_cut()
    given = ChannelTensors(call, layout, "weight", "bias", *RUNNING)
    if not call["training"] and call["running_mean"] is not None:
        return _by_running(call, layout, given)
    count = math.prod(n for d, n in enumerate(x.shape) if d != 1)
    if count <= 1 and call["training"]:
        raise PartitionError(f"{call.name}: expected more than 1 value per channel when training, got {x.shape}.")
    sets = _sets(call, layout, [d for d in range(x.dim) if d != 1], count)
    everyone, momentum, eps = _gathered_channels(call, layout), call["momentum"], call["eps"]
    tracks, is_filled = "running_mean" in given.names and call["training"], layout.is_filled

    def on_device(x: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """By torch's fused kernels, which also let running statistics follow where this worker has all channels."""
        whole, (weight, bias) = given.named(tensors), given.own(tensors, "weight", "bias")
        fused = tracks and layout.grid.shape[1] == 1
        follow: Running = (whole["running_mean"], whole["running_var"], momentum) if fused else (None, None, 0.0)
        if len(sets.members) == 1 and (fused or not tracks):
            return F.batch_norm(x, follow[0], follow[1], weight, bias, True, follow[2], eps)
        records = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
        ticket = Ticket(key_of(sets.name), 0)
        y, of_mean, inverse = sync_batch_norm(x, weight, bias, follow, eps, sets, ticket, records)
        if tracks and not fused:
            track(whole["running_mean"], whole["running_var"], of_mean, inverse**-2 - eps)
        return y

    @torch.no_grad()
    def track(mean: Tensor, var: Tensor, of_mean: Tensor, of_var: Tensor) -> None:
        new = everyone(torch.stack([of_mean, of_var * (count / max(1, count - 1))]))
        mean.lerp_(new[0].to(mean.dtype), momentum)
        var.lerp_(new[1].to(var.dtype), momentum)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        if x.is_cuda and is_filled:
            return on_device(x, tensors)
        values, whole = _values(x), given.named(tensors)
        statistics = sets.moments(values)
        if tracks:
            track(whole["running_mean"], whole["running_var"], *statistics)
        return _standardised(values, given.affine(tensors, values.dtype), statistics, eps, sets).to(x.dtype)

    return Placed(Cut(layout), run, given.wants)


def _gathered_channels(call: Call, layout: Layout) -> Movement:
    """From statistics of this worker's channels to those of all channels, where channels are cut."""
    if layout.grid.shape[1] == 1:
        return lambda own: own
    block, team = call.block(layout), tuple(sorted(layout.grid.team_along(call.workers.rank, [1])))
    total = AllSum(call.workers.transport, call.workers.team, f"the running statistics of {call.name}", team)

    def gathered(own: Tensor) -> Tensor:
        whole = own.new_zeros(own.shape[0], layout.global_shape[1])
        whole[:, block.start[1] : block.stop[1]] = own
        return total(whole)

    return gathered


@rule("instance_norm")
def instance_norm(call: Call) -> Placed:
    """A set is one channel of one sample; running statistics follow the mean over the samples."""
    x, layout = call.first_cut()
    given = ChannelTensors(call, layout, "weight", "bias", *RUNNING)
    if not call["use_input_stats"]:
        return _by_running(call, layout, given)
    elements, samples = math.prod(x.shape[2:]), x.shape[0]
    sets = _sets(call, layout, range(2, x.dim), elements)
    name = f"the running statistics of {call.name}"
    along_batch = tuple(sorted(layout.grid.team_along(call.workers.rank, (0,))))
    mean_over = AllSum(call.workers.transport, call.workers.team, name, along_batch)
    everyone, momentum, eps = _gathered_channels(call, layout), call["momentum"], call["eps"]

    @torch.no_grad()
    def track(mean: Tensor, var: Tensor, of_mean: Tensor, of_var: Tensor) -> None:
        corrected = elements / max(1, elements - 1)
        new = everyone(mean_over(torch.stack([of_mean.sum(0), of_var.sum(0) * corrected]) / samples))
        mean.mul_(1 - momentum).add_(new[0], alpha=momentum)
        var.mul_(1 - momentum).add_(new[1], alpha=momentum)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        values, whole = _values(x), given.named(tensors)
        rows = values.reshape(1, x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
        statistics = sets.moments(rows)
        if "running_mean" in whole:
            mean, var = (s.view(x.shape[:2]) for s in statistics)
            track(whole["running_mean"], whole["running_var"], mean, var)
        affine = given.affine(tensors, values.dtype, len(x))
        return _standardised(rows, affine, statistics, eps, sets).view(x.shape).to(x.dtype)

    return Placed(Cut(layout), run, given.wants)


@rule("group_norm")
def group_norm(call: Call) -> Placed:
    """A set is one group of channels of one sample; it may lie on several workers."""
    x, layout = call.first_cut()
    given = ChannelTensors(call, layout, "weight", "bias")
    groups, eps, block = call["num_groups"], call["eps"], call.block(layout)
    if not x.is_cut_along(range(1, x.dim)) and block.volume:
        return Placed(Cut(layout), call.locally(), given.wants)
    in_group = x.shape[1] // groups
    sets = _sets(call, layout, range(1, x.dim), in_group * math.prod(x.shape[2:]))
    sets.in_groups(block, in_group, x.shape[1], x.device)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        values = _values(x)
        rows = values.reshape(1, x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
        affine = given.affine(tensors, values.dtype, len(x))
        y = _standardised(rows, affine, sets.moments(rows), eps, sets).view(x.shape)
        return y.to(dtype_after(lambda one: torch.group_norm(one, 1), x))

    return Placed(Cut(layout), run, given.wants)


@rule("layer_norm", "rms_norm")
def layer_norm(call: Call) -> Placed:
    """Over the last dims: on blocks as they are where these are whole, else by statistics over the workers."""
    x, layout = call.first_cut()
    lead = x.dim - len(call["normalized_shape"])
    wants: list[Want] = [Replicated()] * (len(call.tensors) - 1)
    if not x.is_cut_along(range(lead, x.dim)):
        return Placed(Cut(layout), call.locally(), [None, *wants])
    if call.kind == "rms_norm":
        whole = call.whole(x, range(lead, x.dim))
        return Placed(Cut(whole), call.locally(), [whole, *wants])
    names = [name for name in ("weight", "bias") if call[name] is not None]
    sets = _sets(call, layout, range(lead, x.dim), math.prod(x.shape[lead:]))
    slices, eps = call.block(layout).slices[lead:], call["eps"]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        values = _values(x)
        given = {name: value[slices].to(values.dtype) for name, value in zip(names, tensors, strict=True)}
        rows = values.reshape(1, math.prod(x.shape[:lead]), math.prod(x.shape[lead:]))
        y = _standardised(rows, (None, None), sets.moments(rows), eps, sets).view(x.shape)
        y = y * given["weight"] if "weight" in given else y
        y = y + given["bias"] if "bias" in given else y
        return y.to(dtype_after(lambda one: F.layer_norm(one, (1,)), x))

    return Placed(Cut(layout), run, [None, *wants])
