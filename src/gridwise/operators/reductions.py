"""Reductions: sums, means, norms, counts and variances are collected over boxes; others need the reduced dims whole.

A reduction is collected where that pays (`sums.is_collected`). `running` has those that keep a running value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Shape
from . import sums
from .call import OperatorCall, TensorSpec
from .formats import HALVES
from .labels import by_labels, numbered
from .on_boxes import AnyOperator, Builder, Collecting, Composed, Local, Summed
from .statistics import CollectedMoments
from .table import NotOnBoxes, operator


@dataclass(frozen=True)
class Reduction:
    """The dims of a tensor that a reduction reduces, and those that it keeps."""

    shape: Shape
    dims: tuple[int, ...]
    keepdim: bool

    @classmethod
    def of(cls, call: OperatorCall) -> Reduction:
        x = call.tensors[0]
        if not x.volume:
            raise NotOnBoxes("a reduction of a tensor without elements")
        dims = call.dims("dim", x.dim) if "dim" in call.given else tuple(range(x.dim))
        return cls(x.shape, tuple(sorted(dims)) if x.dim else (), bool(call.given.get("keepdim", False)))

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.dims)

    @property
    def kept_shape(self) -> Shape:
        """Of the results without the reduced dims."""
        return tuple(self.shape[d] for d in self.kept)

    @property
    def result(self) -> Shape:
        return tuple(1 for _ in self.shape) if self.keepdim and not self.kept else self._with_ones(self.kept_shape)

    def _with_ones(self, kept: Shape) -> Shape:
        if not self.keepdim:
            return kept
        left = iter(kept)
        return tuple(1 if d in self.dims else next(left) for d in range(len(self.shape)))

    @property
    def count(self) -> int:
        """How many elements make one of the result."""
        return prod(self.shape[d] for d in self.dims)

    def own(self, box: Box) -> Box:
        """A box of the tensor, along the kept dims."""
        return Box(tuple(box.start[d] for d in self.kept), tuple(box.stop[d] for d in self.kept))

    def along(self, values: Tensor, box: Box) -> Tensor:
        """Values of the kept dims, for the elements of a box of the tensor: with extent 1 along the reduced dims."""
        mine = values.reshape(self.kept_shape)[self.own(box).slices]
        return mine.reshape([1 if d in self.dims else n for d, n in enumerate(box.shape)])

    def whole(self, call: OperatorCall) -> Local:
        """The operator itself, with the reduced dims whole."""
        labels = numbered("d", len(self.shape))
        reduced = [f"r{d}" if d in self.dims else label for d, label in enumerate(labels)]
        result = reduced if self.keepdim else [labels[d] for d in self.kept]
        return by_labels(call, [labels], result, flops=float(self.count))

    def collected(self, call: OperatorCall, make: Callable[[], Collecting | Composed]) -> AnyOperator:
        """What `make` makes where collecting pays, else the operator itself."""
        if any(tuple(each.shape) != self.result for each in call.results) or len(call.tensors) > 1:
            raise NotOnBoxes("a reduction to another shape")
        local = self.whole(call)
        if not sums.is_collected(prod(self.kept_shape), self.count):
            return local
        found = make()
        if isinstance(found, Collecting):
            found.local = local
        return found

    def summed(self, terms: Callable[[Tensor], Tensor], finish: Callable[[Tensor], Tensor]) -> Summed:
        """Collects the sum of what `terms` gives for each box, without the reduced dims."""

        def partial(box: Box, x: Tensor) -> tuple[Tensor, ...]:
            part = terms(x)
            return (sums.in_full(part.to(sums.kept_in(part.dtype)), self.own(box), self.kept_shape),)

        return Summed(self.shape, lambda box: [box], partial, lambda total: (finish(total).reshape(self.result),))


@operator(
    "median.dim", "nanmedian.dim", "kthvalue", "frobenius_norm", "nanmean", "mode", "quantile.scalar", "nanquantile.scalar",
    "linalg_norm", "median", "nanmedian",
)  # fmt: skip
def whole(call: OperatorCall) -> Local:
    """Reductions that need all elements along the reduced dims at once."""
    reduction = Reduction.of(call)
    if any(tuple(each.shape) != reduction.result for each in call.results):
        raise NotOnBoxes("a reduction to another shape")
    return reduction.whole(call)


@operator("quantile", "nanquantile")
def quantiles(call: OperatorCall) -> Local:
    """Several quantiles, in a new first dim."""
    x, q = call.tensors
    labels = numbered("d", x.dim)
    if call["dim"] is None or not x.dim:
        rest = [f"r{d}" for d in range(x.dim)] if call["keepdim"] else []
    else:
        dim = call["dim"] % x.dim
        rest = [*labels[:dim], *(["r"] if call["keepdim"] else []), *labels[dim + 1 :]]
    made = by_labels(call, [labels, ["q"][: q.dim]], [*["q"][: q.dim], *rest], flops=32.0)
    return made if call["interpolation"] == "linear" else replace(made, without_gradient=(1,))


@operator("histc")
def histogram(call: OperatorCall) -> Summed:
    """How many elements lie in each of some bins of equal width between two given numbers."""
    x, run, dtype = call.tensors[0], call.locally(), call.result.dtype
    if call["min"] == call["max"] or not x.volume:
        raise NotOnBoxes("bins between the smallest and the largest element")
    return Summed(
        x.shape, lambda box: [box], lambda box, x: (run(x.detach()).double(),), lambda total: (total.to(dtype),), 4.0
    )


@operator("sum", "mean", "nansum")
def summed(call: OperatorCall) -> AnyOperator:
    reduction, dtype = Reduction.of(call), call.result.dtype
    function, dims, wide = torch.nansum if call.kind == "nansum" else torch.sum, reduction.dims, _wide(dtype)
    count = reduction.count if call.kind == "mean" else 1

    def terms(x: Tensor) -> Tensor:
        return function(x, dims, dtype=wide) if dims else x.to(wide)

    def finish(total: Tensor) -> Tensor:
        return (total / count if count > 1 else total).to(dtype)

    return reduction.collected(call, lambda: reduction.summed(terms, finish))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES else dtype


@operator("any", "all", "count_nonzero")
def counted(call: OperatorCall) -> AnyOperator:
    reduction, dtype, kind = Reduction.of(call), call.result.dtype, call.kind

    def terms(x: Tensor) -> Tensor:
        found = x == 0 if kind == "all" else x != 0
        return found.sum(reduction.dims, dtype=torch.int64) if reduction.dims else found.to(torch.int64)

    def finish(total: Tensor) -> Tensor:
        return (total if kind == "count_nonzero" else total > 0 if kind == "any" else total == 0).to(dtype)

    return reduction.collected(call, lambda: reduction.summed(terms, finish))


@operator("linalg_vector_norm", "norm")
def norm(call: OperatorCall) -> AnyOperator:
    """The p-norm: the sum of p-th powers, or the largest or smallest absolute value."""
    reduction, dtype = Reduction.of(call), call.result.dtype
    given = call["p" if call.kind == "norm" else "ord"]
    p = 2.0 if given is None else float(given)
    if p < 1 and p != -math.inf:
        return whole(call)
    if math.isinf(p):
        kind = torch.ops.aten.amax if p > 0 else torch.ops.aten.amin
        dims, keepdim = list(reduction.dims), reduction.keepdim

        def build(builder: Builder, x: Any) -> Any:
            made = builder.call(kind.default, builder.call(torch.ops.aten.abs.default, x), dims, keepdim)
            return made if call.tensors[0].dtype == dtype else builder.call(torch.ops.aten.to.dtype, made, dtype)

        return reduction.collected(call, lambda: Composed(build))
    wide = _wide(dtype)
    of_complex = call.tensors[0].dtype.is_complex

    def terms(x: Tensor) -> Tensor:
        x = x.abs() if of_complex else x
        return torch.linalg.vector_norm(x, p, reduction.dims, dtype=wide).double() ** p if x.dim() else x.abs() ** p

    return reduction.collected(call, lambda: reduction.summed(terms, lambda total: root(total, p).to(dtype)))


def root(x: Tensor, p: float) -> Tensor:
    """The p-th root, with a gradient of zero at zero, as torch's norms and standard deviations have it."""
    nothing = x == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, x) ** (1 / p))


@operator("var", "std", "var_mean", "std_mean")
def spread(call: OperatorCall) -> AnyOperator:
    """Variance and standard deviation, from moments."""
    reduction, count = Reduction.of(call), Reduction.of(call).count
    given = call.given.get("correction", int(bool(call.given.get("unbiased", True))))
    correction = 1.0 if given is None else float(given)
    freedom = max(0.0, count - correction)
    factor = count / freedom if freedom else math.inf
    is_root, with_mean = call.kind.startswith("std"), call.kind.endswith("mean")
    x = call.tensors[0]
    if x.dtype.is_complex:
        return whole(call)

    def of_var(var: Tensor) -> Tensor:
        return root(var * factor, 2.0) if is_root else var * factor

    def build(builder: Builder, x: Any) -> Any:
        mean, var = builder.collected(CollectedMoments(reduction.shape, call.tensors[0].dtype, reduction.dims), [x])
        results = [
            builder.local(_finished(reduction, result, function), [value], result.shape, result.dtype, name)
            for value, result, function, name in zip(
                (var, mean), call.results, (of_var, lambda mean: mean), (call.kind, "mean"), strict=False
            )
        ]
        return results if with_mean else results[0]

    return reduction.collected(call, lambda: Composed(build))


def _finished(reduction: Reduction, result: TensorSpec, function: Callable[[Tensor], Tensor]) -> Local:
    """A result from statistics that lack the reduced dims."""

    def needs(box: Box) -> Sequence[Box]:
        return [reduction.own(box)] if reduction.keepdim else [box]

    return Local(needs, lambda box, x: function(x).to(result.dtype).reshape(box.shape))


@operator("dist")
def distance(call: OperatorCall) -> Composed:
    aten = torch.ops.aten

    def build(builder: Builder, x: Any, y: Any) -> Any:
        return builder.call(aten.linalg_vector_norm.default, builder.call(aten.sub.Tensor, x, y), call["p"])

    return Composed(build)


@operator("trace")
def trace(call: OperatorCall) -> Composed:
    aten = torch.ops.aten
    return Composed(lambda builder, x: builder.call(aten.sum.default, builder.call(aten.diagonal.default, x)))
