"""Matrix products: one function for all layers, by torch's kernels or, in a compiled step, fused into its loops.

    product(a, b, plus)  =  a b + plus          a (n, k), b (k, m), or stacks of them

A compiler fuses everything except calls of a matrix library. For small products the call costs more than the product,
and forty of them break up the loops of a small recurrent network; written as a sum of products they are fused into
those loops. On a GPU such a call takes 50 microseconds even for a product of a million numbers, too few to fill it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .tracing import is_traced

SMALL = {"cpu": 1 << 15, "cuda": 1 << 21}
"""The largest product, in multiplications, that is written out for the compiler, by kind of device."""


def product(a: Tensor, b: Tensor, plus: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """a b (+ plus). `out` is a buffer for the result, used only where nothing is added or written out."""
    if is_traced() and a.numel() * b.shape[-1] <= SMALL.get(a.device.type, 0):
        made = (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)
    elif plus is not None:
        return torch.addmm(plus, a, b) if a.ndim == 2 else torch.baddbmm(plus, a, b)
    else:
        made = torch.matmul(a, b, out=out)
    return made if plus is None else made + plus


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which to sum or count values of type `dtype`: at least float32."""
    return torch.promote_types(dtype, torch.float32)
