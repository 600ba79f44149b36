"""The dtypes of a layer's results under autocast, found by calling torch itself, since devices differ."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...operators.formats import HALVES


def autocasts() -> bool:
    """Whether torch's autocast is on here, for the CPU or for CUDA."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def autocast_dtypes() -> dict[str, torch.dtype]:
    """The dtype to which autocast lowers products on each kind of device; empty where it is off."""
    return {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}


def dtype_of_products(x: Tensor) -> torch.dtype:
    """The dtype in which torch computes products of `x` here: autocast may lower it."""
    if not x.is_floating_point():
        return x.dtype
    one = x.detach().new_zeros(1, 1)
    return F.linear(one, one).dtype


def dtype_after(function: Callable[[Tensor], Tensor], x: Tensor) -> torch.dtype:
    """The dtype of ``function(x)``: under autocast it may be higher than the half precision of `x`.

    `function` is called with a tensor ``(1, 1, 1, ...)`` of as many dims as `x`, or not at all.
    """
    if x.dtype not in HALVES or not autocasts():
        return x.dtype
    with torch.no_grad():
        return function(x.new_zeros((1,) * x.dim())).dtype
