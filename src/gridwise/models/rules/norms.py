"""Norms: where their tensors lie, and the sets of elements over which `nn.layers.norm_functions` takes statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ...errors import PartitionError
from ...grid import Layout
from ...nn.engine.agreement import key_of
from ...nn.engine.copy_and_sum import AllSum
from ...nn.engine.operator import CallId
from ...nn.layers import norm_functions
from ...nn.layers.standardise import Normalisation, Running, Sets
from ..placement import Cut
from .call import Call, Placed
from .table import rule


class ChannelTensors:
    """The per-channel arguments of a norm: whole on every worker, which uses only the channels of its block."""

    def __init__(self, call: Call, layout: Layout, *names: str) -> None:
        self.is_given = [call[name] is not None for name in names]
        self.wants = call.others_whole(None)
        block, self.channels, self.is_cut = call.block(layout), layout.global_shape[1], layout.grid.shape[1] > 1
        self.start, self.count = block.start[1], block.shape[1]
        team = tuple(sorted(layout.grid.team_along(call.workers.rank, [1])))
        name = f"the running statistics of {call.name}"
        self._total = AllSum(call.workers.transport, call.workers.team, name, team)

    def own(self, tensors: Sequence[Tensor]) -> list[Tensor | None]:
        """Views of this worker's channels, for each of `names`; None for arguments that are not given."""
        left = iter(tensors)
        return [self._own(next(left)) if given else None for given in self.is_given]

    def _own(self, x: Tensor) -> Tensor:
        return x.narrow(0, self.start, self.count) if self.is_cut else x

    @torch.no_grad()
    def share(self, tensors: Sequence[Tensor]) -> None:
        """Give every worker all channels of tensors of which each worker has changed its own, if channels are cut."""
        if self.is_cut:
            whole = tensors[0].new_zeros(len(tensors), self.channels)
            whole.narrow(1, self.start, self.count).copy_(torch.stack([self._own(x) for x in tensors]))
            for x, value in zip(tensors, self._total(whole), strict=True):
                x.copy_(value)


def _sets(call: Call, layout: Layout, axes: Iterable[int], count: int) -> Sets:
    """Sets of `count` elements, each spread over the workers along `axes`."""
    members = tuple(sorted(layout.grid.team_along(call.workers.rank, axes)))
    return Sets(call.workers.transport, call.workers.team, call.name, members, count)


def _normalising(call: Call, sets: Sets) -> Callable[..., Normalisation]:
    """A function from the tensors of a norm to its `Normalisation` over the sets.

    The norm is recorded by autograd if any of the tensors needs a gradient, which is the same on all workers.
    """
    eps, call_id = call["eps"], CallId(key_of(call.name), 0)

    def how(*tensors: Tensor | None) -> Normalisation:
        records = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        return Normalisation(sets, eps, call_id, records)

    return how


def _by_running(call: Call, layout: Layout, given: ChannelTensors) -> Placed:
    """Normalise by the running statistics, which every worker holds."""
    eps = call["eps"]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        weight, bias, mean, var = given.own(tensors)
        return norm_functions.by_running(x, weight, bias, mean, var, eps)

    return Placed(Cut(layout), run, given.wants)


def _tracking(
    call: Call, layout: Layout, given: ChannelTensors, sets: Sets, norm: Callable[..., Tensor], *rest: object
) -> Placed:
    """Normalise by `norm` over the sets; running statistics, if any, are updated alike on all workers."""
    how, tracks, momentum = _normalising(call, sets), call["running_mean"] is not None, call["momentum"]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        weight, bias, mean, var = given.own(tensors)
        running = Running(mean, var, momentum) if tracks else Running()
        y = norm(x, weight, bias, running, how(x, weight, bias), *rest)
        if tracks:
            given.share(tensors[-2:])
        return y

    return Placed(Cut(layout), run, given.wants)


@rule("batch_norm")
def batch_norm(call: Call) -> Placed:
    """Batch norm, with the statistics of the batch over all workers."""
    x, layout = call.first_cut()
    if not x.volume:  # torch leaves running statistics as they are
        return Placed(Cut(layout), lambda x, *given: sum((each.sum() for each in given), x), call.others_whole(None))
    given = ChannelTensors(call, layout, "weight", "bias", "running_mean", "running_var")
    if not call["training"] and call["running_mean"] is not None:
        return _by_running(call, layout, given)
    count = math.prod(n for d, n in enumerate(x.shape) if d != 1)
    if count == 1 and call["training"]:
        raise PartitionError(f"{call.name}: expected more than 1 value per channel when training, got {x.shape}.")
    sets = _sets(call, layout, [d for d in range(x.dim) if d != 1], count).of_channels(layout)
    return _tracking(call, layout, given, sets, norm_functions.batch_norm, layout.is_filled)


@rule("instance_norm")
def instance_norm(call: Call) -> Placed:
    """Statistics of each channel of each sample; the running ones are updated with the mean over the samples."""
    x, layout = call.first_cut()
    given = ChannelTensors(call, layout, "weight", "bias", "running_mean", "running_var")
    if not call["use_input_stats"]:
        return _by_running(call, layout, given)
    sets = _sets(call, layout, range(2, x.dim), math.prod(x.shape[2:]))
    along_batch = tuple(sorted(layout.grid.team_along(call.workers.rank, (0,))))
    name = f"the running statistics of {call.name}"
    over_samples = AllSum(call.workers.transport, call.workers.team, name, along_batch)
    return _tracking(call, layout, given, sets, norm_functions.instance_norm, over_samples, x.shape[0])


@rule("group_norm")
def group_norm(call: Call) -> Placed:
    """A set is one group of channels of one sample; it may lie on several workers."""
    x, layout = call.first_cut()
    given = ChannelTensors(call, layout, "weight", "bias")
    block, in_group = call.block(layout), x.shape[1] // call["num_groups"]
    if not x.is_cut_along(range(1, x.dim)) and block.volume:
        return Placed(Cut(layout), call.locally(), given.wants)
    sets = _sets(call, layout, range(1, x.dim), in_group * math.prod(x.shape[2:]))
    sets.in_groups(block, in_group, x.shape[1], x.device)
    how = _normalising(call, sets)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        weight, bias = given.own(tensors)
        return norm_functions.group_norm(x, weight, bias, how(x, weight, bias))

    return Placed(Cut(layout), run, given.wants)


@rule("layer_norm", "rms_norm")
def layer_norm(call: Call) -> Placed:
    """A norm over the last dims: local where these are whole, else with statistics over the workers."""
    x, layout = call.first_cut()
    lead = x.dim - len(call["normalized_shape"])
    if not x.is_cut_along(range(lead, x.dim)) or call.kind == "rms_norm":
        return call.along_whole(range(lead, x.dim))
    how = _normalising(call, _sets(call, layout, range(lead, x.dim), math.prod(x.shape[lead:])))
    slices, is_given = call.block(layout).slices[lead:], [call[name] is not None for name in ("weight", "bias")]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        left = iter(tensors)
        weight, bias = (next(left)[slices] if each else None for each in is_given)
        return norm_functions.layer_norm(x, lead, weight, bias, how(x))

    return Placed(Cut(layout), run, call.others_whole(None))
