"""Norms: statistics are collected, and then each element is normalised where it lies.

    batch norm       a set = a channel, in all samples
    instance norm    a set = a channel of one sample
    group norm       a set = a group of channels of one sample
    layer norm       a set = all elements of the last dims, at one place of the leading ones

Running statistics are small tensors that are written once, after the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Interval, Shape
from ..torch_internals.operators import schema_of
from .call import OperatorCall
from .formats import wide
from .on_boxes import AnyOperator, Builder, Composed, Local
from .statistics import CollectedMoments, normalised
from .table import NotOnBoxes, operator

SMALL_LEAD = 1 << 12
"""The most sets of a layer norm over several dims whose statistics are collected."""


@operator("batch_norm")
def batch_norm(call: OperatorCall) -> AnyOperator:
    x = call["input"]
    if not call["training"] and call["running_mean"] is not None:
        return _by_running(call)
    if not x.volume:
        raise NotOnBoxes("the statistics of a tensor without elements")
    count = x.volume // x.shape[1]
    if count <= 1 and call["training"]:
        raise NotOnBoxes(f"expected more than 1 value per channel when training, got {x.shape}")
    dims = [d for d in range(x.dim) if d != 1]

    def build(builder: Builder, *values: Any) -> Any:
        given = _by_name(call, values)
        mean, var = builder.collected(CollectedMoments(x.shape, x.dtype, dims), [given["input"]])
        _follow(builder, call, given, mean, var, count)
        return _normalise(builder, call, given, mean, var, lambda box: [(box.start[1], box.stop[1])])

    return Composed(build)


@operator("instance_norm")
def instance_norm(call: OperatorCall) -> AnyOperator:
    """Statistics of each channel of each sample; the running ones follow the mean over the samples."""
    if not call["use_input_stats"]:
        return _by_running(call)
    return _of_samples(call, 1)


@operator("group_norm")
def group_norm(call: OperatorCall) -> AnyOperator:
    return _of_samples(call, call["input"].shape[1] // call["num_groups"])


def _of_samples(call: OperatorCall, size: int) -> AnyOperator:
    """A set is `size` channels of one sample."""
    x = call["input"]
    if not x.volume:
        raise NotOnBoxes("the statistics of a tensor without elements")
    dims = range(2, x.dim)

    def build(builder: Builder, *values: Any) -> Any:
        given = _by_name(call, values)
        mean, var = builder.collected(CollectedMoments(x.shape, x.dtype, dims, size), [given["input"]])
        if "running_mean" in given:
            _follow(builder, call, given, mean, var, prod(x.shape[2:]))

        def sets(box: Box) -> list[Interval]:
            return [(box.start[0], box.stop[0]), (box.start[1] // size, -(-box.stop[1] // size))]

        return _normalise(builder, call, given, mean, var, sets, size)

    return Composed(build)


@operator("layer_norm")
def layer_norm(call: OperatorCall) -> AnyOperator:
    """Over the last dim all of it is needed at once; over several, statistics are collected unless there are many."""
    x, dims = call["input"], len(call["normalized_shape"])
    lead = x.dim - dims
    if not x.volume:
        raise NotOnBoxes("the statistics of a tensor without elements")
    if dims == 1 or prod(x.shape[:lead]) > SMALL_LEAD:
        return _over_last(call, lead)

    def build(builder: Builder, *values: Any) -> Any:
        given = _by_name(call, values)
        mean, var = builder.collected(CollectedMoments(x.shape, x.dtype, range(lead, x.dim)), [given["input"]])
        names = [name for name in ("weight", "bias") if name in given]

        def needs(box: Box) -> list[Box]:
            rows = Box(box.start[:lead], box.stop[:lead])
            return [box, rows, rows, *[Box(box.start[lead:], box.stop[lead:])] * len(names)]

        def run(box: Box, x: Tensor, mean: Tensor, var: Tensor, *rest: Tensor) -> Tensor:
            rows = wide(x).reshape(1, prod(x.shape[:lead]), -1)
            y = normalised(rows, None, None, mean.reshape(-1), var.reshape(-1), call["eps"]).view(x.shape)
            for name, parameter in zip(names, rest, strict=True):
                y = y * parameter.to(y.dtype) if name == "weight" else y + parameter.to(y.dtype)
            return y.to(call.result.dtype)

        tensors = [given["input"], mean, var, *(given[name] for name in names)]
        return builder.local(Local(needs, run, 6.0), tensors, call.result.shape, call.result.dtype)

    return Composed(build)


@operator("rms_norm")
def rms_norm(call: OperatorCall) -> Local:
    return _over_last(call, call["input"].dim - len(call["normalized_shape"]))


def _over_last(call: OperatorCall, lead: int) -> Local:
    """The norm itself, with all of the normalised dims, of which the wanted part is then taken."""
    norm, whole = call.locally(), tuple(call["normalized_shape"])
    parameters = [Box.of_shape(whole)] * (len(call.tensors) - 1)

    def needs(box: Box) -> list[Box]:
        return [Box((*box.start[:lead], *(0 for _ in whole)), (*box.stop[:lead], *whole)), *parameters]

    def run(box: Box, *tensors: Tensor) -> Tensor:
        y: Tensor = norm(*tensors)
        if y.shape != box.shape:
            y = y[(slice(None),) * lead + box.slices[lead:]]
        return y

    return Local(needs, run, 6.0)


# What norms of channels share


def _by_name(call: OperatorCall, values: Sequence[Any]) -> dict[str, Any]:
    """The values of those tensor arguments that are given."""
    names = [a.name for a in schema_of(call.op).arguments]
    tensors = ("input", "weight", "bias", "running_mean", "running_var")
    return dict(zip([name for name in names if name in tensors and call[name] is not None], values, strict=True))


def _normalise(
    builder: Builder, call: OperatorCall, given: dict[str, Any], mean: Any, var: Any, sets: Any, size: int = 1
) -> Any:
    """Normalise by the statistics of sets, each of `size` channels; `sets`: which of them a box needs."""
    names, eps, dtype = [name for name in ("weight", "bias") if name in given], call["eps"], call.result.dtype

    def needs(box: Box) -> list[Box]:
        statistics = Box.of_intervals(sets(box))
        return [box, statistics, statistics, *[Box(box.start[1:2], box.stop[1:2])] * len(names)]

    def run(box: Box, x: Tensor, mean: Tensor, var: Tensor, *rest: Tensor) -> Tensor:
        values = wide(x)
        parameters = {name: each.to(values.dtype) for name, each in zip(names, rest, strict=True)}
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if mean.dim() == 1:
            return normalised(values, weight, bias, mean, var, eps).to(dtype)
        samples = len(x)
        if size > 1:
            sets = torch.arange(box.start[1], box.stop[1], device=x.device) // size - box.start[1] // size
            mean, var = mean.index_select(1, sets), var.index_select(1, sets)
        if samples > 1:
            weight, bias = (None if each is None else each.repeat(samples) for each in (weight, bias))
        rows = values.reshape(1, samples * x.shape[1], -1)
        y = normalised(rows, weight, bias, mean.reshape(-1), var.reshape(-1), eps)
        return y.view(x.shape).to(dtype)

    tensors = [given["input"], mean, var, *(given[name] for name in names)]
    return builder.local(Local(needs, run, 4.0), tensors, call.result.shape, dtype)


def _follow(builder: Builder, call: OperatorCall, given: dict[str, Any], mean: Any, var: Any, count: int) -> None:
    """Move the running statistics towards those of the call, whose sets have `count` elements each."""
    factors = {"running_mean": 1.0, "running_var": count / max(1, count - 1)}
    for (name, factor), value in zip(factors.items(), (mean, var), strict=True):
        if name in given:
            new = _followed(call, call[name].shape, call["momentum"], factor)
            tensors = [given[name], value]
            builder.write(given[name], builder.local(new, tensors, call[name].shape, call[name].dtype))


def _followed(call: OperatorCall, shape: Shape, momentum: float, factor: float) -> Local:
    by_sample = call.kind == "instance_norm"

    def needs(box: Box) -> list[Box]:
        samples = [(0, call["input"].shape[0])] if by_sample else []
        return [box, Box.of_intervals([*samples, (box.start[0], box.stop[0])])]

    @torch.no_grad()
    def run(box: Box, running: Tensor, value: Tensor) -> Tensor:
        value = value.mean(0) if by_sample else value
        return running.lerp((value * factor).to(running.dtype), momentum)

    return Local(needs, run)


def _by_running(call: OperatorCall) -> Local:
    """Normalise by the running statistics."""
    given = [call[name] is not None for name in ("weight", "bias", "running_mean", "running_var")]
    eps, dtype = call["eps"], call.result.dtype

    def needs(box: Box) -> list[Box]:
        return [box, *[Box(box.start[1:2], box.stop[1:2])] * sum(given)]

    def run(box: Box, x: Tensor, *rest: Tensor) -> Tensor:
        left = iter(rest)
        weight, bias, mean, var = (next(left) if each else None for each in given)
        return torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, True).to(dtype)

    return Local(needs, run, 2.0)
