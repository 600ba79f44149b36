"""Adaptive pooling: windows that depend on the extents of input and output.

    output i of m reads the inputs [floor(i n / m), ceil((i + 1) n / m))       n, m, i global

Torch's kernel counts these coordinates from the start of what it is given, so it is called on runs of outputs for which
that makes no difference (`grid.adaptive_runs`): the whole box where m divides n, single outputs at worst. An average
over all of space is a mean, which is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...grid import Box, Interval, Shape, adaptive_need, adaptive_runs
from ...torch_internals.operators import kernels_of_nn
from ..call import OperatorCall
from ..on_boxes import AnyOperator, Builder, Composed, Local
from ..table import operator
from .pooling import dims_of, global_indices

AVG_POOL: dict[int, Callable[..., Tensor]] = {
    1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d,
}  # fmt: skip
MAX_POOL: dict[int, Callable[..., Any]] = {
    1: torch.adaptive_max_pool1d, 2: kernels_of_nn.adaptive_max_pool2d, 3: kernels_of_nn.adaptive_max_pool3d,
}  # fmt: skip

Run = tuple[Interval, Interval]
"""Outputs, and the inputs that they read."""


@operator(*(f"adaptive_avg_pool{d}d" for d in (1, 2, 3)), *(f"_adaptive_avg_pool{d}d" for d in (2, 3)))
def adaptive_avg_pool(call: OperatorCall) -> AnyOperator:
    x, dims = call.tensors[0], dims_of(call)
    if call.result.shape[-dims:] != (1,) * dims:
        return adaptive_average(call)
    over = list(range(x.dim - dims, x.dim))

    def build(builder: Builder, x: Any) -> Any:
        return builder.call(torch.ops.aten.mean.dim, x, over, True)

    return Composed(build)


def adaptive_average(call: OperatorCall) -> Local:
    """The same by windows, whatever the extents of the output."""
    pool = AVG_POOL[dims_of(call)]
    return _by_runs(call, lambda x, sizes, starts: (pool(x, sizes),))


@operator(*(f"adaptive_max_pool{d}d" for d in (1, 2, 3)))
def adaptive_max_pool(call: OperatorCall) -> Local:
    return adaptive_maximum(call, True)


def adaptive_maximum(call: OperatorCall, with_indices: bool) -> Local:
    """The maxima, with their flat, global indices or without."""
    dims = dims_of(call)
    pool, extents = MAX_POOL[dims], call.tensors[0].shape[-dims:]

    def pooled(x: Tensor, sizes: Shape, starts: Shape) -> tuple[Tensor, ...]:
        y, indices = pool(x, sizes)
        return (y, global_indices(indices, x.shape[-dims:], starts, extents)) if with_indices else (y,)

    return _by_runs(call, pooled)


def _by_runs(call: OperatorCall, pooled: Callable[[Tensor, Shape, Shape], tuple[Tensor, ...]]) -> Local:
    """``pooled(part of the input, sizes of the output, start of the part)`` for all combinations of runs."""
    dims = dims_of(call)
    lead = call.tensors[0].dim - dims
    sizes = list(zip(call.tensors[0].shape[lead:], call.result.shape[lead:], strict=True))

    def ends(box: Box) -> list[Interval]:
        return list(zip(box.start[lead:], box.stop[lead:], strict=True))

    def needs(box: Box) -> list[Box]:
        rows = [adaptive_need(outputs, *size) for outputs, size in zip(ends(box), sizes, strict=True)]
        return [Box.of_intervals([*zip(box.start[:lead], box.stop[:lead], strict=True), *rows])]

    def run(box: Box, x: Tensor) -> Any:
        lines = [runs_of(outputs, *size) for outputs, size in zip(ends(box), sizes, strict=True)]
        origin = [line[0][1][0] for line in lines]
        parts = []
        for runs in product(*lines):
            part = x
            for d, (_, (start, stop)) in enumerate(runs):
                part = part.narrow(lead + d, start - origin[d], stop - start)
            made = tuple(stop - start for (start, stop), _ in runs)
            parts.append(pooled(part, made, tuple(start for _, (start, _) in runs)))
        results = [_put_together(list(each), [len(line) for line in lines], lead) for each in zip(*parts, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)

    return Local(needs, run, prod(max(1.0, n / max(1, m)) for n, m in sizes))


def runs_of(outputs: Interval, extent: int, size: int) -> list[Run]:
    """The runs of one dim, whose `extent` rows are pooled to `size`."""
    return [(run, adaptive_need(run, extent, size)) for run in adaptive_runs(outputs, extent, size)]


def _put_together(parts: list[Tensor], counts: Sequence[int], lead: int) -> Tensor:
    """Concatenate the results of all runs, last dim first."""
    for d, n in reversed(list(enumerate(counts, lead))):
        if n > 1:
            parts = [torch.cat(parts[i : i + n], d) for i in range(0, len(parts), n)]
    return parts[0]
