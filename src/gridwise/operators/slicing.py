"""Rows of a dim: slices, single rows, the parts of a split, and tensors in which such rows are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Interval, sliced_need
from .call import OperatorCall
from .labels import none_of
from .on_boxes import Builder, Composed, Local
from .table import NotOnBoxes, operator


def with_interval(box: Box, dim: int, interval: Interval) -> Box:
    """The box with another interval along a dim."""
    first, last = interval
    return Box((*box.start[:dim], first, *box.start[dim + 1 :]), (*box.stop[:dim], last, *box.stop[dim + 1 :]))


def with_dim(box: Box, dim: int, interval: Interval) -> Box:
    """The box with one dim more."""
    first, last = interval
    return Box((*box.start[:dim], first, *box.start[dim:]), (*box.stop[:dim], last, *box.stop[dim:]))


def without_dim(box: Box, dim: int) -> Box:
    return Box((*box.start[:dim], *box.start[dim + 1 :]), (*box.stop[:dim], *box.stop[dim + 1 :]))


def rows_of(call: OperatorCall, extent: int) -> range:
    """The rows of a dim that a slice takes."""
    if call.kind.startswith("narrow"):
        start = call["start"]
        return range(extent)[start : start + call["length"]] if start >= 0 else range(extent)[start:][: call["length"]]
    return range(extent)[slice(call["start"], call["end"], call["step"])]


@operator("slice", "narrow.default", "slice_copy", "narrow_copy")
def sliced(call: OperatorCall) -> Local:
    x = call.tensors[0]
    dim = call["dim"] % x.dim
    return rows(dim, rows_of(call, x.shape[dim]))


def rows(dim: int, taken: range) -> Local:
    """These rows of a dim."""
    step = (slice(None),) * dim + (slice(None, None, taken.step),)

    def needs(box: Box) -> list[Box]:
        return [with_interval(box, dim, sliced_need(taken, (box.start[dim], box.stop[dim])))]

    return Local(needs, lambda box, x: x[step] if taken.step > 1 else x)


@operator("select", "select_copy")
def select(call: OperatorCall) -> Local:
    x = call.tensors[0]
    dim = call["dim"] % x.dim
    return row(dim, call["index"] % x.shape[dim])


def row(dim: int, index: int) -> Local:
    """One row of a dim, without this dim."""
    return Local(lambda box: [with_dim(box, dim, (index, index + 1))], lambda box, x: x.select(dim, 0))


@operator(
    "split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes",
    "split_with_sizes_copy", "split_copy", "hsplit", "vsplit", "dsplit",
)  # fmt: skip
def split(call: OperatorCall) -> Composed:
    """Consecutive rows of a dim, for each part."""
    x = call.tensors[0]
    if len(call.tensors) > 1:
        raise NotOnBoxes("a split at places that are no numbers")
    fixed = {"hsplit": min(1, x.dim - 1), "vsplit": 0, "dsplit": 2}
    dim = fixed[call.kind] if call.kind in fixed else call["dim"] % x.dim
    ends = list(accumulate(part.shape[dim] for part in call.results))

    def build(builder: Builder, x: Any) -> list[Any]:
        return [
            builder.local(rows(dim, range(end - part.shape[dim], end)), [x], part.shape, part.dtype, f"part {i}")
            for i, (end, part) in enumerate(zip(ends, call.results, strict=True))
        ]

    return Composed(build)


@operator("unbind", "unbind_copy")
def unbind(call: OperatorCall) -> Composed:
    """Each row of a dim."""
    dim = call["dim"] % call.tensors[0].dim

    def build(builder: Builder, x: Any) -> list[Any]:
        return [
            builder.local(row(dim, i), [x], part.shape, part.dtype, f"row {i}") for i, part in enumerate(call.results)
        ]

    return Composed(build)


@operator("slice_scatter")
def slice_scatter(call: OperatorCall) -> Local:
    """A tensor in which a slice is replaced: of rows that are all replaced nothing is needed."""
    x, new = call.tensors
    dim = call["dim"] % x.dim
    taken = rows_of(call, x.shape[dim])

    def replaced(box: Box) -> Interval:
        """Which rows of the slice lie in the box."""
        first, last = (-((taken.start - cut) // taken.step) for cut in (box.start[dim], box.stop[dim]))
        return min(max(first, 0), len(taken)), min(max(last, 0), len(taken))

    def needs(box: Box) -> Sequence[Box]:
        first, last = replaced(box)
        if first >= last:
            return [box, none_of(new.shape)]
        covered = last - first == box.stop[dim] - box.start[dim]
        return [none_of(x.shape) if covered else box, with_interval(box, dim, (first, last))]

    def run(box: Box, x: Tensor, new: Tensor) -> Tensor:
        first, last = replaced(box)
        if first >= last:
            return x
        if last - first == box.stop[dim] - box.start[dim]:
            return new.to(x.dtype)
        offset, y = box.start[dim], x.clone()  # torch's slice_scatter has no gradient of complex numbers
        torch.ops.aten.slice.Tensor(y, dim, taken[first] - offset, taken[last - 1] + 1 - offset, taken.step).copy_(new)
        return y

    return Local(needs, run)


@operator("select_scatter")
def select_scatter(call: OperatorCall) -> Local:
    """A tensor in which one row is replaced."""
    x, new = call.tensors
    dim = call["dim"] % x.dim
    index = call["index"] % x.shape[dim]

    def needs(box: Box) -> Sequence[Box]:
        if not box.start[dim] <= index < box.stop[dim]:
            return [box, none_of(new.shape)]
        return [none_of(x.shape) if box.stop[dim] - box.start[dim] == 1 else box, without_dim(box, dim)]

    def run(box: Box, x: Tensor, new: Tensor) -> Tensor:
        if not box.start[dim] <= index < box.stop[dim]:
            return x
        if box.stop[dim] - box.start[dim] == 1:
            return new.to(x.dtype).unsqueeze(dim)
        y = x.clone()
        y.select(dim, index - box.start[dim]).copy_(new)
        return y

    return Local(needs, run)
