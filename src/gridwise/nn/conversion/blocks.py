"""Functions on one block, in place of torch's where these refuse empty blocks or ask for sizes that a block has not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def reshaped(x: Tensor, before: int, after: int, sizes: Sequence[int]) -> Tensor:
    """`x` with all but its leading and trailing dims in another shape; -1 is known also where the block is empty."""
    inside = x.shape[before : x.dim() - after]
    if -1 in sizes:
        others = math.prod(n for n in sizes if n != -1)
        sizes = [math.prod(inside) // max(1, others) if n == -1 else n for n in sizes]
    return x.reshape(*x.shape[:before], *sizes, *x.shape[x.dim() - after :])


def pixel_shuffled(x: Tensor, r: int) -> Tensor:
    """``(..., c r r, h, w)`` to ``(..., c, h r, w r)``; torch's has no gradient for empty blocks."""
    *lead, c, h, w = x.shape
    parts = x.reshape(*lead, c // r**2, r, r, h, w)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return parts.permute(order).reshape(*lead, c // r**2, h * r, w * r)


def pixel_unshuffled(x: Tensor, r: int) -> Tensor:
    """``(..., c, h r, w r)`` to ``(..., c r r, h, w)``."""
    *lead, c, h, w = x.shape
    parts = x.reshape(*lead, c, h // r, r, w // r, r)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return parts.permute(order).reshape(*lead, c * r**2, h // r, w // r)


def padded(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`F.pad`, which mirrors and repeats only what has elements."""
    if x.numel() or mode == "constant":
        return F.pad(x, tuple(pad), mode, value)
    shape = list(x.shape)
    for i, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        shape[x.dim() - 1 - i] += before + behind
    return x.reshape(-1)[:0].new_empty(shape) if not x.requires_grad else x.sum() + x.new_empty(shape)


def part(parts: Any, i: int) -> Any:
    return parts[i]


def same(x: Any) -> Any:
    return x


def chosen(shape: torch.Size, dim: int | None) -> Any:
    return shape if dim is None else shape[dim]
