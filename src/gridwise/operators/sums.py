"""What is collected box by box: when, in which precision sums are kept, and the summands of a box.

A reduction of many elements to a small result is collected. If the result is large, or it takes few elements to make one
of the result (channels, a window), it is a local operator that needs the reduced dims whole.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..grid import Box, Shape

SMALL = 1 << 16
"""Results of up to so many elements are collected."""
MANY = 1 << 11
"""Reductions of more elements than these are collected, and sums of products with more than `LONG` terms."""
LONG = 1 << 16


def is_collected(result: int, terms: int, many: int | None = None) -> bool:
    """Whether a reduction to `result` elements, each of so many terms, is collected."""
    return result <= SMALL and terms > (MANY if many is None else many)


def kept_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums over boxes are kept."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def in_full(part: Tensor, box: Box, shape: Shape) -> Tensor:
    """A tensor of `shape` with `part` on the box and zeros elsewhere."""
    if part.shape == shape:
        return part
    ends = zip(box.start, box.stop, shape, strict=True)
    return F.pad(part, [n for a, b, extent in reversed(list(ends)) for n in (a, extent - b)])
