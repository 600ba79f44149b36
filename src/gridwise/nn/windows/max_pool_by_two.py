"""Maximum pooling of windows of two, side by side: dim by dim, the larger one of each pair of rows.

    forward    y = max(a, b),  second = b > a         a the even rows, b the odd ones, as views: one call over whole rows
    adjoint    a = 0 where second, else y             b = y where second, else 0

The last dim first: then equal maxima leave the first of a window in memory's order, and its gradient goes where torch's
does. torch's kernel on the CPU looks at element by element and keeps an index of eight bytes for each maximum; a pair takes
one byte. Gradients are chosen by masks of their bits, since `torch.where` is slower than all the rest. How much that is:
benchmarks/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .fetch import memory_format_of

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
LEAST = 1 << 15
"""Elements from which this is faster than torch's kernel."""


def takes(x: Tensor) -> bool:
    """Whether this is faster than torch's kernel for `x`: enough numbers, in memory, in the usual order."""
    return type(x) is Tensor and x.is_cpu and x.dtype in BITS and x.is_contiguous() and x.numel() >= LEAST


def max_of_pairs(x: Tensor, dims: int) -> Tensor:
    """What torch's maximum pooling of the last `dims` dims by windows of two makes of `x`; a row too many is left out.

    Examples
    --------
    >>> max_of_pairs(torch.tensor([[1.0, 2.0, 0.0, 5.0], [3.0, 0.0, 4.0, 1.0]]), 2)
    tensor([[3., 5.]])
    """
    return _MaxOfPairs.apply(x, dims) if torch.is_grad_enabled() and x.requires_grad else _largest(x, dims)[0]


def _largest(x: Tensor, dims: int, wanted: bool = False, nan: bool = False) -> tuple[Tensor, list[Tensor]]:
    """The maxima, and if `wanted`, for each dim from the last which of its pairs had a larger second row.

    Of several that are `nan`, torch takes the last.
    """
    chosen = []
    for d in range(x.dim() - 1, x.dim() - 1 - dims, -1):
        x = x.narrow(d, 0, x.shape[d] // 2 * 2)
        a, b = half_of(x, d, 0), half_of(x, d, 1)
        if wanted:
            chosen.append((b > a) | b.isnan() if nan else b > a)
        x = torch.maximum(a, b)
    return x, chosen


class _MaxOfPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: int) -> Tensor:
        y, chosen = _largest(x, dims, wanted=True)
        if math.isnan(y.sum()):  # also of inf - inf, which does no harm
            y, chosen = _largest(x, dims, wanted=True, nan=True)
        ctx.save_for_backward(*chosen)
        ctx.extents = x.shape[x.dim() - dims :]
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(gradient, ctx.extents, *ctx.saved_tensors), None


class _Spread(torch.autograd.Function):
    """The adjoint of taking the chosen ones; what is chosen has no gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, extents: Sequence[int], *chosen: Tensor) -> Tensor:
        ctx.save_for_backward(*chosen)
        dtype, bits = y.dtype, y.contiguous().view(BITS[y.dtype])
        for d, (extent, second) in enumerate(zip(extents, reversed(chosen), strict=True), y.dim() - len(extents)):
            x = rows_like(bits, d, extent)
            there = torch.bitwise_and(bits, second.to(bits.dtype).neg_(), out=half_of(x, d, 1))
            torch.bitwise_xor(bits, there, out=half_of(x, d, 0).narrow(d, 0, bits.shape[d]))
            if extent % 2:
                x.narrow(d, extent - 1, 1).zero_()
            bits = x
        return bits.view(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        chosen = ctx.saved_tensors
        for d, second in zip(range(gradient.dim() - 1, -1, -1), chosen, strict=False):
            n = second.shape[d]
            gradient = torch.where(second, half_of(gradient, d, 1), half_of(gradient, d, 0).narrow(d, 0, n))
        return gradient, None, *(None,) * len(chosen)


def rows_like(like: Tensor, dim: int, rows: int) -> Tensor:
    shape = (*like.shape[:dim], rows, *like.shape[dim + 1 :])
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format_of(like))


def half_of(y: Tensor, dim: int, half: int) -> Tensor:
    """The even rows, or the odd ones."""
    return y[(*(slice(None),) * dim, slice(half, None, 2))]
