"""Dtypes and memory formats that operators ask about."""

from __future__ import annotations

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def memory_format_of(x: Tensor) -> torch.memory_format:
    """The format to keep: channels last where `x`, or the tensor that it is a slice of, is laid out so, else contiguous.

    Torch's kernels choose the layout of their results by the same rule (`suggest_memory_format` in ATen).
    """
    if x.dim() == 4 and not x.is_contiguous() and _is_channels_last(x):
        return torch.channels_last
    if x.dim() == 5 and not x.is_contiguous() and _is_channels_last(x):
        return torch.channels_last_3d
    return torch.contiguous_format


def _is_channels_last(x: Tensor) -> bool:
    shape, stride, least = x.shape, x.stride(), 0
    if stride[1] == 0:
        return False
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        if shape[d] == 0 or stride[d] < least or (d == 0 and least == stride[1]):
            return False
        least = stride[d] * max(1, shape[d])
    return True


def wide(x: Tensor) -> Tensor:
    """`x` in the precision of sums and statistics: float32 for half precision."""
    return x.float() if x.dtype in HALVES else x
