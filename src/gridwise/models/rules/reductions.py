"""Reductions. Sums and means are taken over each block first, then over the workers along the cut dims.

kept dims whole     every worker has a summand of the result: a partial sum
kept dims cut       every worker has a summand of a box; each gets the sum of its own block of the result
other reductions    (amax, prod, logsumexp, argmax, ...) the reduced dims are made whole first, by cutting others
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...grid import Grid, Layout, Needs
from ...nn.engine.copy_and_sum import AllSum
from ...operators.formats import HALVES
from ..movement import Movement, applied, move_along
from ..placement import Cut, GlobalTensor, Partial, Placement, Replicated, resized, with_dim, with_dims, without_dims
from .call import Call, NothingCut, Placed
from .table import rule


def kept_layout(layout: Layout, dims: Sequence[int], keepdim: bool) -> Layout:
    """The layout of the result of a reduction over dims that are whole."""
    return resized(layout, dims, [1] * layout.grid.dim) if keepdim else without_dims(layout, dims)


def reduce_whole(call: Call, dims: Sequence[int], keepdim: bool) -> Placed:
    """Make the dims whole, then reduce each block."""
    layout = call.whole(call.tensors[0], dims)
    target = kept_layout(layout, dims, keepdim)
    return Placed(Cut(target), call.unless_empty(call.locally(), *[target] * len(call.results)), [layout])


@rule("sum", "mean", "nansum")
def sums(call: Call) -> Placed:
    x = call.tensors[0]
    dims = call.dims("dim", x.dim) if "dim" in call.given else tuple(range(x.dim))
    return summed(call, dims, bool(call.given.get("keepdim", False)), call.kind == "mean")


def summed(call: Call, dims: Sequence[int], keepdim: bool, is_mean: bool) -> Placed:
    """The sum or the mean over dims: of each block, then over the workers if some of the dims are cut."""
    x, dtype = call.tensors[0], call.result.dtype
    if x.layout is None or not x.is_cut_along(dims) or call.kind == "nansum":
        return reduce_whole(call, dims, keepdim)
    count = math.prod(x.shape[d] for d in dims) if is_mean else 1
    total, over = torch.float32 if dtype in HALVES else dtype, tuple(dims)
    result = GlobalTensor(call.result.shape, total, x.device, Replicated())
    target, finish = sum_of_blocks(call, x.layout, dims, keepdim, result)
    if dtype in HALVES and finish is None:  # summed over the workers before rounding
        all_sum = AllSum(call.workers.transport, call.workers.team, call.name, call.workers.team)
        target, finish = Replicated(), applied(all_sum)

    def run(x: Tensor) -> Tensor:
        y = x.sum(over, keepdim=keepdim, dtype=total)
        y = y / count if count != 1 else y
        return (y if finish is None else finish(y)).to(dtype)

    return Placed(target, run)


def sum_of_blocks(
    call: Call, layout: Layout, dims: Sequence[int], keepdim: bool, result: GlobalTensor
) -> tuple[Placement, Movement | None]:
    """The placement of the sum over `dims`, and the movement that makes it from the workers' sums over their blocks."""
    kept = [d for d in range(layout.grid.dim) if d not in dims]
    if all(layout.grid.shape[d] == 1 for d in kept):
        return Partial(), None
    target = call.workers.spread(result.shape)
    if not isinstance(target, Cut):  # too few elements for `spread` to cut
        grid = Grid(call.workers.ranks, (call.workers.size,) + (1,) * (result.dim - 1))
        target = Cut(Layout.balanced(grid, result.shape))
    # a worker's sum is a box of the result; workers that differ only along reduced axes have the same box
    own = Needs.of_layout(layout).intervals
    intervals = [((0, 1),) * layout.grid.shape[d] if d in dims else own[d] for d in range(layout.grid.dim)]
    needs = Needs(layout.grid, tuple(intervals))
    lifted = target.layout
    if not keepdim:
        cuts = iter(lifted.cuts)
        lifted = with_dims(lifted, [(0, 1) if d in dims else next(cuts) for d in range(layout.grid.dim)])
    back = applied(move_along(lifted, needs, call.workers, f"the adjoint of {call.name}").adjoint)
    block, box = call.block(target.layout).shape, needs.box(call.workers.rank).shape
    return target, lambda y: back(y.reshape(box)).reshape(block)


@rule("std", "var", "std_mean", "var_mean")
def moments(call: Call) -> Placed:
    """Of each block, whose reduced dims are whole; torch would warn of an empty one, in which there is none to compute."""
    placed, pair = others(call), call.kind.endswith("_mean")
    dims = call.dims("dim", call.tensors[0].dim) if call.given.get("dim") is not None else ()
    run, keepdim = placed.run, bool(call.given.get("keepdim", False))

    def local(x: Tensor) -> Any:
        if x.numel() or not any(x.shape[d] == 0 for d in range(x.dim()) if d not in dims):
            return run(x)
        nothing = torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim)
        return (nothing, x.sum(dims, keepdim)) if pair else nothing

    return replace(placed, run=local) if dims else placed


@rule(
    "amax", "amin", "prod", "logsumexp", "any", "all", "max.dim", "min.dim",
    "median.dim", "nanmedian.dim", "kthvalue", "argmax", "argmin", "linalg_vector_norm", "norm", "linalg_norm", "aminmax",
    "count_nonzero", "max", "min", "median", "nanmedian", "hash_tensor",
    "frobenius_norm", "nuclear_norm", "nanmean", "mode", "quantile", "dist",
)  # fmt: skip
def others(call: Call) -> Placed:
    """Reductions that need all elements along the reduced dims on one worker."""
    x = call.tensors[0]
    dims = call.dims("dim", x.dim) if call.given.get("dim") is not None else tuple(range(x.dim))
    if call.kind == "dist":
        raise NothingCut
    if len(call.tensors) > 1:
        return _quantiles(call, dims)
    return reduce_whole(call, dims, bool(call.given.get("keepdim", False)))


def _quantiles(call: Call, dims: Sequence[int]) -> Placed:
    """Several quantiles, in a first dim of the result."""
    x, q = call.tensors
    layout = call.whole(x, dims)
    target = kept_layout(layout, dims, call["keepdim"])
    target = with_dim(target, 0, q.volume) if q.dim else target
    return Placed(Cut(target), call.unless_empty(call.locally(), target), call.others_whole(layout))


@rule(
    "softmax", "_softmax", "log_softmax", "_log_softmax", "softmin", "cumsum", "cumsum_", "cumprod", "logcumsumexp", "cummax",
    "cummin", "_safe_softmax", "sort", "argsort", "topk", "glu",
)  # fmt: skip
def along(call: Call) -> Placed:
    """Operators along a dim that they keep; it is made whole, by cutting others."""
    return call.along_whole(call.dims("dim", call.tensors[0].dim))
