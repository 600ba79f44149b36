"""Dtypes and memory formats that operators ask about."""

from __future__ import annotations

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def memory_format_of(x: Tensor) -> torch.memory_format:
    """The format to keep: channels last where `x` is laid out so, else contiguous."""
    if not x.is_contiguous():
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
        if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
            return torch.channels_last_3d
    return torch.contiguous_format


def wide(x: Tensor) -> Tensor:
    """`x` in the precision of sums and statistics: float32 for half precision."""
    return x.float() if x.dtype in HALVES else x
