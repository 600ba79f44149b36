"""Sums that are collected box by box: the precision in which they are kept, and the summands of a box.

A reduction is collected if its result is `SMALL`, so that it can be kept while boxes come and go. It is a local operator
otherwise, which needs the reduced dims whole.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..grid import Box, Shape

SMALL = 1 << 16
"""Results of up to so many elements are collected."""


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
