"""Joins and copies: concatenation, stacking, rows repeated, and the parts above and below a diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Interval
from .call import OperatorCall
from .labels import along, none_of
from .on_boxes import Builder, Composed, Local
from .slicing import with_interval, without_dim
from .table import NotOnBoxes, operator


@operator("cat", "concat", "concatenate")
def cat(call: OperatorCall) -> Local:
    """Tensors one after another; torch skips those of shape (0,)."""
    dim = call["axis" if "axis" in call.given else "dim"] % call.result.dim
    skipped = [value.shape == (0,) and call.result.dim > 1 for value in call.tensors]
    extents = [0 if skip else value.shape[dim] for skip, value in zip(skipped, call.tensors, strict=True)]
    ends = list(accumulate(extents))
    dtype = call.result.dtype

    def needs(box: Box) -> Sequence[Box]:
        a, b = box.start[dim], box.stop[dim]
        parts = []
        for skip, extent, end in zip(skipped, extents, ends, strict=True):
            first, last = max(a - end + extent, 0), min(b - end + extent, extent)
            parts.append(
                Box((0,), (0,)) if skip else with_interval(box, dim, (first, last) if first < last else (0, 0))
            )
        return parts

    def run(box: Box, *parts: Tensor) -> Tensor:
        filled = [part for part in parts if part.numel()]
        return filled[0].to(dtype) if len(filled) == 1 else torch.cat([part.to(dtype) for part in filled], dim)

    return Local(needs, run)


@operator("stack")
def stack(call: OperatorCall) -> Local:
    """Tensors side by side, along a new dim."""
    dim, dtype = call["dim"] % call.result.dim, call.result.dtype
    nothing = none_of(call.tensors[0].shape)

    def needs(box: Box) -> Sequence[Box]:
        part = without_dim(box, dim)
        return [part if box.start[dim] <= i < box.stop[dim] else nothing for i in range(len(call.tensors))]

    def run(box: Box, *parts: Tensor) -> Tensor:
        first, last = box.start[dim], box.stop[dim]
        if last - first == 1:
            return parts[first].to(dtype).unsqueeze(dim)
        return torch.stack([part.to(dtype) for part in parts[first:last]], dim)

    return Local(needs, run)


@operator("repeat", "tile")
def repeat(call: OperatorCall) -> Local:
    """Copies of a tensor next to one another: a box within one copy needs its rows only."""
    x, result = call.tensors[0], call.result
    lacking = result.dim - x.dim
    lead = (1,) * lacking

    def rows(n: int, start: int, stop: int) -> Interval:
        return (start % n, (stop - 1) % n + 1) if start // n == (stop - 1) // n else (0, n)

    def needs(box: Box) -> list[Box]:
        ends = zip(x.shape, box.start[lacking:], box.stop[lacking:], strict=True)
        return [Box.of_intervals(rows(n, a, b) for n, a, b in ends)]

    def run(box: Box, given: Tensor) -> Tensor:
        y = given.reshape((*lead, *given.shape))
        for d, n in enumerate(x.shape, lacking):
            start, stop = box.start[d], box.stop[d]
            copies = (stop - 1) // n - start // n + 1
            if copies > 1 and n > 1:
                times = [1] * y.dim()
                times[d] = copies
                y = y.repeat(times).narrow(d, start % n, stop - start)
        return y.expand(box.shape)

    return Local(needs, run)


@operator("repeat_interleave")
def repeat_interleave(call: OperatorCall) -> Local | Composed:
    """Every row several times."""
    if len(call.tensors) > 1 or not isinstance(call.given.get("repeats"), int):
        raise NotOnBoxes("rows repeated as often as the elements of a tensor say")
    times, dim = call["repeats"], call["dim"]
    if dim is None:

        def build(builder: Builder, x: Any) -> Any:
            return builder.call(call.op, builder.call(torch.ops.aten.reshape.default, x, [-1]), times, 0)

        return Composed(build)
    dim %= call.tensors[0].dim

    def needs(box: Box) -> list[Box]:
        return [with_interval(box, dim, (box.start[dim] // times, (box.stop[dim] - 1) // times + 1))]

    def run(box: Box, x: Tensor) -> Tensor:
        first, length = box.start[dim], box.stop[dim] - box.start[dim]
        return x.repeat_interleave(times, dim).narrow(dim, first % times, length)

    return Local(needs, run)


@operator("tril", "triu")
def triangle(call: OperatorCall) -> Local:
    """The part below or above a diagonal, by the rows and columns of the whole tensor."""
    diagonal, run = call["diagonal"], getattr(torch, call.kind)
    made = along(call, [])
    return Local(made.needs, lambda box, x: run(x, diagonal + box.start[-2] - box.start[-1]))
