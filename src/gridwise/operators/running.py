"""Reductions that keep a running value while boxes come: extremes and where they are, log-sum-exp, products.

Gradients are torch's: an extreme's gradient is shared by all elements that equal it, or goes to the one whose index is
returned; the gradient of a product is the product of the other elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..grid import Box
from .call import OperatorCall
from .on_boxes import AnyOperator, Collecting, Composed
from .reductions import Reduction
from .sums import kept_in
from .table import operator

NOWHERE = torch.iinfo(torch.int64).max


class CollectedReduction(Collecting):
    """Collects values of the kept dims: a state is a tuple of tensors, of which each box changes its part."""

    flops = 2.0

    def __init__(self, reduction: Reduction, dtypes: Sequence[torch.dtype]) -> None:
        self.reduction, self.space, self.dtypes = reduction, reduction.shape, dtypes

    def needs(self, box: Box) -> Sequence[Box]:
        return [box]

    def filled(self, device: torch.device, *values: Any, dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
        shape = self.reduction.kept_shape
        return tuple(torch.full(shape, v, dtype=d, device=device) for v, d in zip(values, dtypes, strict=True))

    def parts(self, state: tuple[Tensor, ...], box: Box) -> list[Tensor]:
        """The part of a box, of each tensor of the state."""
        slices = self.reduction.own(box).slices
        return [each[slices] for each in state]

    def in_lines(self, x: Tensor) -> Tensor:
        """The reduced dims of a box in one last dim."""
        order = [*self.reduction.kept, *self.reduction.dims]
        return x.permute(order).flatten(len(self.reduction.kept)) if self.reduction.dims else x.unsqueeze(-1)

    def finished(self, *values: Tensor) -> tuple[Tensor, ...]:
        shape = self.reduction.result
        return tuple(each.reshape(shape).to(dtype) for each, dtype in zip(values, self.dtypes, strict=True))


def _lowest(dtype: torch.dtype, is_max: bool) -> float | int | bool:
    if dtype == torch.bool:
        return not is_max
    if dtype.is_floating_point:
        return float("-inf") if is_max else float("inf")
    info = torch.iinfo(dtype)
    return info.min if is_max else info.max


class CollectedExtremes(CollectedReduction):
    """The largest or smallest elements, and how many equal each of them; NaN equals NaN if `equal` says so."""

    def __init__(self, reduction: Reduction, dtype: torch.dtype, is_max: bool, equal: Callable[..., Tensor]) -> None:
        super().__init__(reduction, [dtype])
        self.is_max, self.equal = is_max, equal

    def add(self, state: Any, box: Box, *tensors: Tensor) -> Any:
        x = self.in_lines(tensors[0].detach())
        if state is None:
            state = self.filled(x.device, _lowest(x.dtype, self.is_max), 0, dtypes=(x.dtype, torch.int64))
        value, count = self.parts(state, box)
        found = x.amax(-1) if self.is_max else x.amin(-1)
        merged = (torch.maximum if self.is_max else torch.minimum)(value, found)
        ties, equal = self.equal(x, found.unsqueeze(-1)).sum(-1), self.equal
        count.copy_(torch.where(equal(value, merged), count, 0) + torch.where(equal(found, merged), ties, 0))
        value.copy_(merged)
        return state

    def finish(self, state: Any) -> tuple[Tensor, ...]:
        return self.finished(state[0])

    def gradients(
        self, state: Any, box: Box, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        ((x,), (cotangent,)) = tensors, cotangents
        if cotangent is None:
            return [None]
        value, count, of_value = (self.reduction.along(each, box) for each in (*state, cotangent))
        return [(of_value * self.equal(x, value) / count).to(x.dtype)]


def equal_or_nan(a: Tensor, b: Tensor) -> Tensor:
    same = a == b
    return same | (a.isnan() & b.isnan()) if a.is_floating_point() else same


class CollectedPlaces(CollectedReduction):
    """The largest or smallest elements along one dim, or of all, and the index of the first of them."""

    def __init__(self, reduction: Reduction, dtypes: Sequence[torch.dtype], is_max: bool, gives_values: bool) -> None:
        super().__init__(reduction, dtypes)
        self.is_max, self.gives_values = is_max, gives_values

    def add(self, state: Any, box: Box, *tensors: Tensor) -> Any:
        x = self.in_lines(tensors[0].detach())
        if state is None:
            state = self.filled(x.device, _lowest(x.dtype, self.is_max), NOWHERE, dtypes=(x.dtype, torch.int64))
        value, place = self.parts(state, box)
        found, at = x.max(-1) if self.is_max else x.min(-1)
        at = self._global(at, box)
        is_better = found > value if self.is_max else found < value
        if x.is_floating_point():  # the first NaN wins
            is_better = is_better | (found.isnan() & ~value.isnan())
        is_better = is_better | (equal_or_nan(found, value) & (at < place))
        value.copy_(torch.where(is_better, found, value))
        place.copy_(torch.where(is_better, at, place))
        return state

    def _global(self, at: Tensor, box: Box) -> Tensor:
        """The index of an element among all of its line, from that in the line of a box."""
        whole, inner, found = 1, 1, torch.zeros_like(at)
        for d in reversed(self.reduction.dims):
            extent = box.stop[d] - box.start[d]
            found = found + (at // inner % extent + box.start[d]) * whole
            inner, whole = inner * extent, whole * self.space[d]
        return found

    def finish(self, state: Any) -> tuple[Tensor, ...]:
        return self.finished(*(state if self.gives_values else state[1:]))

    def gradients(
        self, state: Any, box: Box, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        (x,), cotangent = tensors, cotangents[0]
        if not self.gives_values or cotangent is None:
            return [None]
        place, of_value = (self.reduction.along(each, box) for each in (state[1], cotangent))
        if not self.reduction.dims:
            return [of_value]
        (d,) = self.reduction.dims
        rows = torch.arange(box.start[d], box.stop[d], device=x.device).view([-1] + [1] * (x.dim() - d - 1))
        return [torch.where(rows == place, of_value, 0.0).to(x.dtype)]


class CollectedLogSumExp(CollectedReduction):
    """The logarithm of the sum of exponentials."""

    flops = 8.0

    def add(self, state: Any, box: Box, *tensors: Tensor) -> Any:
        x = self.in_lines(tensors[0].detach()).double()
        if state is None:
            state = self.filled(x.device, float("-inf"), dtypes=(torch.float64,))
        (value,) = self.parts(state, box)
        value.copy_(torch.logaddexp(value, x.logsumexp(-1)))
        return state

    def finish(self, state: Any) -> tuple[Tensor, ...]:
        return self.finished(*state)

    def gradients(
        self, state: Any, box: Box, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        ((x,), (cotangent,)) = tensors, cotangents
        if cotangent is None:
            return [None]
        value, of_value = (self.reduction.along(each, box) for each in (state[0], cotangent))
        return [((x - value).exp() * of_value).to(x.dtype)]


class CollectedProduct(CollectedReduction):
    """The product of all elements: that of those that are not zero, and the number of zeros."""

    def add(self, state: Any, box: Box, *tensors: Tensor) -> Any:
        x = self.in_lines(tensors[0].detach())
        kept = kept_in(self.dtypes[0])
        if state is None:
            state = self.filled(x.device, 1, 0, dtypes=(kept, torch.int64))
        value, zeros = self.parts(state, box)
        is_zero = x == 0
        value.mul_(torch.where(is_zero, 1, x).to(kept).prod(-1))
        zeros.add_(is_zero.sum(-1))
        return state

    def finish(self, state: Any) -> tuple[Tensor, ...]:
        value, zeros = state
        return self.finished(torch.where(zeros > 0, 0, value))

    def gradients(
        self, state: Any, box: Box, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        ((x,), (cotangent,)) = tensors, cotangents
        if cotangent is None:
            return [None]
        value, zeros, of_value = (self.reduction.along(each, box) for each in (*state, cotangent))
        is_zero = x == 0
        others = torch.where(is_zero, value, value / torch.where(is_zero, 1, x))
        others = torch.where(zeros == is_zero.to(torch.int64), others, 0)
        return [(others.conj() * of_value).to(x.dtype)]


@operator("amax", "amin")
def extremes(call: OperatorCall) -> AnyOperator:
    reduction = Reduction.of(call)
    return reduction.collected(
        call, lambda: CollectedExtremes(reduction, call.result.dtype, call.kind == "amax", torch.eq)
    )


@operator("aminmax")
def both_extremes(call: OperatorCall) -> Composed:
    aten = torch.ops.aten
    dims, keepdim = [] if call["dim"] is None else [call["dim"]], call["keepdim"]
    return Composed(lambda builder, x: [builder.call(op.default, x, dims, keepdim) for op in (aten.amin, aten.amax)])


@operator("max", "min", "argmax", "argmin")
def extremes_and_places(call: OperatorCall) -> AnyOperator:
    """The extreme of all elements, or along a dim with its index, or the index alone."""
    reduction, is_max = Reduction.of(call), call.kind.endswith("max")
    if len(call.results) == 1 and not call.kind.startswith("arg"):
        return reduction.collected(call, lambda: CollectedExtremes(reduction, call.result.dtype, is_max, equal_or_nan))
    dtypes = [each.dtype for each in call.results]
    return reduction.collected(call, lambda: CollectedPlaces(reduction, dtypes, is_max, len(dtypes) > 1))


@operator("logsumexp")
def logsumexp(call: OperatorCall) -> AnyOperator:
    reduction = Reduction.of(call)
    if call.result.dtype.is_complex:
        return reduction.whole(call)
    return reduction.collected(call, lambda: CollectedLogSumExp(reduction, [call.result.dtype]))


@operator("prod")
def product(call: OperatorCall) -> AnyOperator:
    reduction = Reduction.of(call)
    return reduction.collected(call, lambda: CollectedProduct(reduction, [call.result.dtype]))
