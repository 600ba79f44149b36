"""Operators that are recorded as others, which have rules: as torch itself writes them, or as written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...torch_internals.decompositions import decompositions_of
from ...torch_internals.operators import OpOverload

aten = torch.ops.aten

BY_TORCH = (
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "multilabel_margin_loss_forward",
    "block_diag", "unfold_backward", "_euclidean_dist", "_chunk_cat",
)  # fmt: skip
"""Operators that torch has a decomposition for."""


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    y = x.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate)
    return y.reshape(x.shape)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The next element of the source wherever the mask is true."""
    x, mask = torch.broadcast_tensors(x, mask)
    places = mask.reshape(-1).cumsum(0).sub(1).clamp(0, max(0, source.numel() - 1))
    return torch.where(mask, torch.take(source, places).reshape(x.shape), x) if source.numel() else x.clone()


def _statistics(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """The mean, and one over the standard deviation."""
    var, mean = torch.var_mean(x, list(dims), correction=0, keepdim=True)
    return mean, (var + eps).rsqrt()


def native_layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Tensor, ...]:
    statistics = _statistics(x.detach(), [d - len(shape) for d in range(len(shape))], eps)
    return torch.layer_norm(x, shape, weight, bias, eps), *statistics


def native_group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, channels: int, space: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    y = torch.group_norm(x, groups, weight, bias, eps)
    return y, *(each.squeeze(2) for each in _statistics(x.reshape(n, groups, channels // groups * space), [2], eps))


def native_batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    y = torch.batch_norm(x, weight, bias, mean, var, training, momentum, eps, False)
    if not training:
        return y, x.new_empty(0), x.new_empty(0)
    return y, *(each.flatten() for each in _statistics(x.detach(), [d for d in range(x.dim()) if d != 1], eps))


def _without_statistics(x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    return native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


def _with_update(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    return *native_batch_norm(x, weight, bias, mean, var, True, momentum, eps), x.new_empty(0, dtype=torch.uint8)


OURS: dict[OpOverload, Callable[..., Any]] = {
    aten.native_layer_norm.default: native_layer_norm,
    aten.native_group_norm.default: native_group_norm,
    aten.native_batch_norm.default: native_batch_norm,
    aten._native_batch_norm_legit.default: native_batch_norm,
    aten._native_batch_norm_legit.no_stats: _without_statistics,
    aten._batch_norm_with_update.default: _with_update,
    aten.put.default: put,
    aten.masked_scatter.default: masked_scatter,
}


@cache
def compositions() -> dict[OpOverload, Callable[..., Any]]:
    """By operator, the function that is recorded in its place."""
    return {**decompositions_of(BY_TORCH), **OURS}
