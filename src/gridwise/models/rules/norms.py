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


def _narrowed(x: Tensor | None, start: int, stop: int) -> Tensor | None:
    return x if x is None or x.shape[0] == stop - start else x.narrow(0, start, stop - start)


def _sets(call: Call, layout: Layout, axes: Sequence[int], count: int) -> Sets:
    members = tuple(sorted(layout.grid.team_along(call.workers.rank, axes)))
    return Sets(call.workers.transport, call.workers.team, call.name, members, count)


def _standardised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: tuple[Tensor, Tensor], eps: float, sets: Sets
) -> Tensor:
    """By the given statistics; recorded if any of the tensors needs a gradient, which is alike on all workers."""
    records = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    return standardise(x, weight, bias, statistics, eps, sets, Ticket(key_of(sets.name), 0), records)


def _parts(call: Call, *names: str) -> tuple[list[str], list[Want]]:
    """The names of the tensors that are given, and that they are wanted whole."""
    given = [name for name in names if call[name] is not None]
    return given, [Replicated()] * len(given)


@rule("batch_norm")
def batch_norm(call: Call) -> Placed:
    """Statistics of the batch over all workers; running ones are updated alike on all of them."""
    x, layout = call.tensors[0], call.tensors[0].layout
    uses_batch = call["training"] or call["running_mean"] is None
    if layout is None:
        return call.everywhere()
    names, wants = _parts(call, "weight", "bias", "running_mean", "running_var")
    start, stop = call.block(layout).start[1], call.block(layout).stop[1]
    momentum, eps = call["momentum"], call["eps"]
    count = math.prod(n for d, n in enumerate(x.shape) if d != 1)
    sets = _sets(call, layout, [d for d in range(x.dim) if d != 1], count)

    def running(x: Tensor, *tensors: Tensor) -> Tensor:
        given = dict(zip(names, tensors, strict=True))
        weight, bias, mean, var = (
            _narrowed(given.get(name), start, stop) for name in ("weight", "bias", "running_mean", "running_var")
        )
        if not x.numel():  # torch's backward of nothing divides by it; the parameters still take part in theirs
            return _of_nothing(x, weight, bias)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    if not uses_batch:
        return Placed(Cut(layout), running, [None, *wants])
    if count <= 1 and call["training"]:
        raise PartitionError(f"{call.name}: expected more than 1 value per channel when training, got {x.shape}.")

    tracks, is_filled = "running_mean" in names and call["training"], layout.is_filled

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        given = dict(zip(names, tensors, strict=True))
        weight, bias = (_narrowed(given.get(name), start, stop) for name in ("weight", "bias"))
        if x.is_cuda and is_filled:
            return on_device(x, weight, bias, given)
        values = x.float() if x.dtype in HALVES else x
        weight, bias = (None if p is None else p.to(values.dtype) for p in (weight, bias))
        statistics = sets.moments(values)
        if tracks:
            track(given["running_mean"], given["running_var"], *statistics)
        return _standardised(values, weight, bias, statistics, eps, sets).to(x.dtype)

    everyone = _gathered_channels(call, layout)

    def on_device(x: Tensor, weight: Tensor | None, bias: Tensor | None, given: dict[str, Tensor]) -> Tensor:
        fused = tracks and everyone is None
        follow: Running = (given["running_mean"], given["running_var"], momentum) if fused else (None, None, 0.0)
        if len(sets.members) == 1 and (fused or not tracks):
            return F.batch_norm(x, follow[0], follow[1], weight, bias, True, follow[2], eps)
        records = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
        ticket = Ticket(key_of(sets.name), 0)
        y, of_mean, inverse = sync_batch_norm(x, weight, bias, follow, eps, sets, ticket, records)
        if tracks and not fused:
            track(given["running_mean"], given["running_var"], of_mean, inverse**-2 - eps)
        return y

    @torch.no_grad()
    def track(mean: Tensor, var: Tensor, of_mean: Tensor, of_var: Tensor) -> None:
        new = torch.stack([of_mean, of_var * (count / max(1, count - 1))])
        new = new if everyone is None else everyone(new)
        mean.lerp_(new[0].to(mean.dtype), momentum)
        var.lerp_(new[1].to(var.dtype), momentum)

    return Placed(Cut(layout), run, [None, *wants])


def _gathered_channels(call: Call, layout: Layout) -> Movement | None:
    """From statistics of the own channels to those of all channels, where channels are cut."""
    if layout.grid.shape[1] == 1:
        return None
    block, team = call.block(layout), tuple(sorted(layout.grid.team_along(call.workers.rank, [1])))
    total = AllSum(call.workers.transport, call.workers.team, f"the running statistics of {call.name}", team)

    def gathered(own: Tensor) -> Tensor:
        whole = own.new_zeros(own.shape[0], layout.global_shape[1])
        whole[:, block.start[1] : block.stop[1]] = own
        return total(whole)

    return gathered


def _of_nothing(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    along = (-1, *(1,) * (x.dim() - 2))
    y = x.clone() if weight is None else x * weight.view(along)
    return (y if bias is None else y + bias.view(along)).to(x.dtype)


@rule("instance_norm")
def instance_norm(call: Call) -> Placed:
    """A set is one channel of one sample; running statistics follow the mean over the samples."""
    x, layout = call.tensors[0], call.tensors[0].layout
    if layout is None:
        return call.everywhere()
    names, wants = _parts(call, "weight", "bias", "running_mean", "running_var")
    block, eps, momentum = call.block(layout), call["eps"], call["momentum"]
    start, stop = block.start[1], block.stop[1]
    if not call["use_input_stats"]:

        def running(x: Tensor, *tensors: Tensor) -> Tensor:
            given = dict(zip(names, tensors, strict=True))
            weight, bias, mean, var = (
                _narrowed(given.get(name), start, stop) for name in ("weight", "bias", "running_mean", "running_var")
            )
            if not x.numel():
                return _of_nothing(x, weight, bias)
            return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

        return Placed(Cut(layout), running, [None, *wants])
    elements, samples = math.prod(x.shape[2:]), x.shape[0]
    sets = _sets(call, layout, range(2, x.dim), elements)
    over_samples = tuple(sorted(layout.grid.team_along(call.workers.rank, (0,))))
    mean_over = AllSum(
        call.workers.transport, call.workers.team, f"the running statistics of {call.name}", over_samples
    )
    everyone = _gathered_channels(call, layout)

    @torch.no_grad()
    def track(mean: Tensor, var: Tensor, of_mean: Tensor, of_var: Tensor) -> None:
        corrected = elements / max(1, elements - 1)
        new = mean_over(torch.stack([of_mean.sum(0), of_var.sum(0) * corrected]) / samples)
        new = new if everyone is None else everyone(new)
        mean.mul_(1 - momentum).add_(new[0], alpha=momentum)
        var.mul_(1 - momentum).add_(new[1], alpha=momentum)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        given = dict(zip(names, tensors, strict=True))
        values = x.float() if x.dtype in HALVES else x
        rows = values.reshape(1, x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
        statistics = sets.moments(rows)
        if "running_mean" in given:
            track(given["running_mean"], given["running_var"], *(s.view(x.shape[:2]) for s in statistics))
        weight, bias = (_narrowed(given.get(name), start, stop) for name in ("weight", "bias"))
        weight, bias = (None if p is None else p.to(values.dtype).repeat(x.shape[0]) for p in (weight, bias))
        return _standardised(rows, weight, bias, statistics, eps, sets).view(x.shape).to(x.dtype)

    return Placed(Cut(layout), run, [None, *wants])


@rule("group_norm")
def group_norm(call: Call) -> Placed:
    """A set is one group of channels of one sample; it may lie on several workers."""
    x, layout = call.tensors[0], call.tensors[0].layout
    if layout is None:
        return call.everywhere()
    names, wants = _parts(call, "weight", "bias")
    groups, eps, block = call["num_groups"], call["eps"], call.block(layout)
    if not x.is_cut_along(range(1, x.dim)) and block.volume:
        return Placed(Cut(layout), call.locally(), [None, *wants])
    in_group, channels = x.shape[1] // groups, (block.start[1], block.stop[1])
    sets = _sets(call, layout, range(1, x.dim), in_group * math.prod(x.shape[2:]))
    samples, numbers = torch.meshgrid(
        torch.arange(block.shape[0], device="cpu"), torch.arange(*channels, device="cpu") // in_group, indexing="ij"
    )
    sets.of_row = (samples * groups + numbers).flatten().to(x.device)
    sets.total = block.shape[0] * groups
    sets.run = in_group if block.shape[1] == x.shape[1] and block.volume else 0

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        given = dict(zip(names, tensors, strict=True))
        values = x.float() if x.dtype in HALVES else x
        rows = values.reshape(1, x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
        weight, bias = (_narrowed(given.get(name), *channels) for name in ("weight", "bias"))
        weight, bias = (None if p is None else p.to(values.dtype).repeat(x.shape[0]) for p in (weight, bias))
        y = _standardised(rows, weight, bias, sets.moments(rows), eps, sets).view(x.shape)
        return y.to(dtype_after(lambda one: torch.group_norm(one, 1), x))

    return Placed(Cut(layout), run, [None, *wants])


@rule("layer_norm", "rms_norm")
def layer_norm(call: Call) -> Placed:
    """Over the last dims: on blocks as they are where these are whole, else by statistics over the workers."""
    x, layout = call.tensors[0], call.tensors[0].layout
    lead = x.dim - len(call["normalized_shape"])
    if layout is None:
        return call.everywhere()
    wants: list[Want] = [Replicated()] * (len(call.tensors) - 1)
    if not x.is_cut_along(range(lead, x.dim)):
        return Placed(Cut(layout), call.locally(), [None, *wants])
    if call.kind == "rms_norm":
        whole = call.with_whole(x, range(lead, x.dim))
        return call.everywhere() if whole is None else Placed(Cut(whole), call.locally(), [whole, *wants])
    names, _ = _parts(call, "weight", "bias")
    sets = _sets(call, layout, range(lead, x.dim), math.prod(x.shape[lead:]))
    slices, eps = call.block(layout).slices[lead:], call["eps"]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        given = {name: value[slices] for name, value in zip(names, tensors, strict=True)}
        values = x.float() if x.dtype in HALVES else x
        rows = values.reshape(1, math.prod(x.shape[:lead]), math.prod(x.shape[lead:]))
        y = _standardised(rows, None, None, sets.moments(rows), eps, sets).view(x.shape)
        if "weight" in given:
            y = y * given["weight"].to(values.dtype)
        if "bias" in given:
            y = y + given["bias"].to(values.dtype)
        return y.to(dtype_after(lambda one: F.layer_norm(one, (1,)), x))

    return Placed(Cut(layout), run, [None, *wants])
