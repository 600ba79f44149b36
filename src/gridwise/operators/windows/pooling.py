"""Pooling: a box of the output sees windows of the input, and torch pools them.

    max    y[o] = max of x over the window of o        the first one if tied, so gradients and indices are torch's
    avg    y[o] = sum of x over the window / divisor   the divisor counts the window's rows by *global* index

Rows are missing only at the edges of the tensor. Torch pads those before the first row. Windows that reach beyond the
last row are cut off by `ceil_mode`, and where more of them are wanted, torch pads both ends by more, so that windows
are computed that begin before the wanted ones. With `ceil_mode` or without `count_include_pad`, an average at an edge
has another divisor than torch would find in a box, so sums are computed and divided by our own counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...grid import Box, Shape
from ...torch_internals.operators import kernels_of_nn
from ..call import OperatorCall
from ..formats import HALVES, memory_format_of
from ..on_boxes import Local
from ..table import NotOnBoxes, operator
from .one_dim import Windows, cropped, crops_of, each, needed

COMPARISON = 100.0
"""Torch's kernels compare element by element, which takes as long as so many operations of a product."""
MAX_POOL: dict[int, Callable[..., Any]] = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}
WITH_INDICES: dict[int, Callable[..., Any]] = {
    1: torch.max_pool1d_with_indices, 2: kernels_of_nn.max_pool2d_with_indices, 3: kernels_of_nn.max_pool3d_with_indices,
}  # fmt: skip


def dims_of(call: OperatorCall) -> int:
    """How many dims of space an operator has, as its name says."""
    return int(re.findall(r"(\d)d", call.kind)[0])


class Pooling:
    """What both kinds of pooling share: the window along each dim of space, which are the last dims."""

    def __init__(self, call: OperatorCall) -> None:
        self.x, self.dims = call["self"], dims_of(call)
        self.lead = self.x.dim - self.dims
        self.kernel = each(call["kernel_size"], self.dims)
        self.stride = each(call["stride"], self.dims) if call["stride"] else self.kernel
        self.pad = each(call["padding"], self.dims)
        self.dilation = each(call.given.get("dilation", 1), self.dims)
        self.extents, self.outputs = self.x.shape[self.lead :], call.result.shape[self.lead :]
        sizes = zip(self.kernel, self.stride, self.pad, self.dilation, self.extents, strict=True)
        self.windows = tuple(Windows(*each) for each in sizes)

    fill = 0.0
    """What padding by hand adds."""

    def needs(self, box: Box) -> list[Box]:
        lead = zip(box.start[: self.lead], box.stop[: self.lead], strict=True)
        return [Box.of_intervals([*lead, *needed(self.windows, box, self.lead)])]

    def at(self, box: Box, pool: Callable[[Tensor, Shape, bool], Any]) -> Callable[[Tensor], tuple[Any, Tensor]]:
        """A function that makes ``pool(x, padding, ceil_mode)`` on the box, and what was given to `pool`."""
        (need,) = self.needs(box)
        padding: list[int] = []
        surplus: list[int] = []
        by_hand: list[int] = []
        ceil = False
        for d, window in enumerate(self.windows, self.lead):
            before, after = window.lacking(box.start[d], box.stop[d])
            extra = max(0, after - before) // window.stride
            if need.stop[d] - need.start[d] < self.least_rows(d - self.lead):
                by_hand = [before, after, *by_hand]
                before = after = extra = 0
            elif extra and before + extra * window.stride > max(
                window.before, window.kernel // 2
            ):  # torch refuses this
                by_hand = [0, after - before, *by_hand]
                extra, after = 0, before
            else:
                by_hand = [0, 0, *by_hand]
            ceil = ceil or after > before
            padding.append(before + extra * window.stride)
            surplus.append(extra)
        around, pads, crops = tuple(padding), any(by_hand), crops_of(surplus, box, self.lead)

        def pooled(x: Tensor) -> tuple[Any, Tensor]:
            x = F.pad(x, by_hand, value=self.fill) if pads else x
            made = pool(x, around, ceil)
            return (tuple(cropped(y, crops) for y in made) if isinstance(made, tuple) else cropped(made, crops)), x

        return pooled

    def least_rows(self, d: int) -> int:
        """The fewest rows that torch accepts, besides those that it pads."""
        return 1


class MaxPooling(Pooling):
    def __init__(self, call: OperatorCall) -> None:
        super().__init__(call)
        self.with_indices = call.kind.endswith("_indices")
        dtype = call["self"].dtype
        self.fill = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
        if problem := self.problem():
            raise NotOnBoxes(problem)

    def problem(self) -> str | None:
        """Which window has no input, if one has none."""
        for d, (w, outputs) in enumerate(zip(self.windows, self.outputs, strict=True), self.lead):
            for start in range(-w.before, 0, w.stride):
                first = start % w.dilation
                if (start + w.before) // w.stride < outputs and first >= min(w.extent, start + w.span):
                    return (
                        f"dim {d} of extent {w.extent} has a window without any input (it starts at {start} with "
                        f"{w.kernel} rows at distance {w.dilation}): its maximum is undefined"
                    )
        return None

    def planned(self, box: Box) -> Callable[[Tensor], Any]:
        kernel, stride, dilation, lead = self.kernel, self.stride, self.dilation, self.lead
        pool = (WITH_INDICES if self.with_indices else MAX_POOL)[self.dims]
        pooled = self.at(box, lambda x, padding, ceil: pool(x, kernel, stride, padding, dilation, ceil))
        if not self.with_indices:
            return lambda x: pooled(x)[0]
        starts = [w.need(a, b)[0] for w, a, b in zip(self.windows, box.start[lead:], box.stop[lead:], strict=True)]

        def run(x: Tensor) -> tuple[Tensor, Tensor]:
            (y, flat), given = pooled(x)
            return y, global_indices(flat, given.shape[lead:], starts, self.extents)

        return run


class AveragePooling(Pooling):
    def __init__(self, call: OperatorCall) -> None:
        super().__init__(call)
        self.override = call.given.get("divisor_override")
        self.includes_padding = call["count_include_pad"]

    @cached_property
    def counts(self) -> list[list[int]]:
        """How many rows count in the average of each output of a dim: of the tensor, or of the padded tensor."""
        found = []
        for w, outputs in zip(self.windows, self.outputs, strict=True):
            low, high = (-w.before, w.extent + w.before) if self.includes_padding else (0, w.extent)
            starts = [w.stride * o - w.before for o in range(outputs)]
            found.append([min(start + w.kernel, high) - max(start, low) for start in starts])
        return found

    def divisors(self, box: Box) -> tuple[int, list[list[int]]]:
        """The divisor of all outputs of a box; or 1, and the factors of the divisors along each dim."""
        if self.override is not None:
            return self.override, []
        ends = zip(self.counts, box.start[self.lead :], box.stop[self.lead :], strict=True)
        lines = [line[a:b] for line, a, b in ends]
        if all(line.count(line[0]) == len(line) for line in lines):
            return prod(line[0] for line in lines), []
        return 1, lines

    def least_rows(self, d: int) -> int:
        return self.kernel[d] if self.dims == 3 else 1  # avg_pool3d needs as many rows as its kernel, unpadded

    def planned(self, box: Box) -> Callable[[Tensor], Tensor]:
        divisor, lines = self.divisors(box)
        pooled = self.at(box, lambda x, padding, ceil: _averaged(x, self.kernel, self.stride, padding, ceil, divisor))
        if not lines:
            return lambda x: pooled(x)[0]
        counts = torch.ones((), dtype=torch.float64, device="cpu")
        for line in lines:
            counts = counts.unsqueeze(-1) * torch.tensor(line, dtype=torch.float64, device="cpu")

        def run(x: Tensor) -> Tensor:
            y, _ = pooled(x.float() if x.dtype in HALVES else x)  # so that the result is rounded once
            return torch.div(y, counts.to(y), rounding_mode=None if y.dtype.is_floating_point else "trunc").to(x.dtype)

        return run


@operator(*(f"max_pool{d}d{end}" for d in (1, 2, 3) for end in ("", "_with_indices")))
def max_pool(call: OperatorCall) -> Local:
    pooling = MaxPooling(call)
    return Local.planning(pooling.needs, pooling.planned, COMPARISON * prod(pooling.kernel))


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(call: OperatorCall) -> Local:
    pooling = AveragePooling(call)
    return Local.planning(pooling.needs, pooling.planned, float(prod(pooling.kernel)))


def _averaged(x: Tensor, kernel: Shape, stride: Shape, padding: tuple[int, ...], ceil: bool, divisor: int) -> Tensor:
    if len(kernel) == 1:  # avg_pool1d has no argument for the divisor
        return _averaged(x.unsqueeze(-2), (1, *kernel), (1, *stride), (0, *padding), ceil, divisor).squeeze(-2)
    if len(kernel) == 3:
        return F.avg_pool3d(x, kernel, stride, padding, ceil, divisor_override=divisor)
    form = memory_format_of(x)
    if x.is_cuda:  # in contiguous memory, because torch's gradient for channels last is wrong there
        x = x.contiguous().flatten().view(x.shape)  # a single channel's strides can pass for channels last
    y = F.avg_pool2d(x, kernel, stride, padding, ceil, divisor_override=divisor)
    return y.contiguous(memory_format=form) if x.is_cuda else y


def global_indices(flat: Tensor, local: Sequence[int], starts: Sequence[int], extents: Sequence[int]) -> Tensor:
    """Flat indices into a block of shape `local` at `starts`, turned into flat indices into the global tensor."""
    total, scale = torch.zeros_like(flat), 1
    for size, start, extent in zip(reversed(local), reversed(starts), reversed(extents), strict=True):
        total = total + (flat % size + start) * scale
        flat, scale = flat // size, scale * extent
    return total
