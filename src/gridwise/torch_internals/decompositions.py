"""Torch's own ways to write an operator as others, which it uses for compiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._decomp import get_decompositions

from .operators import OpOverload


def decompositions_of(names: Iterable[str]) -> dict[OpOverload, Callable[..., Any]]:
    """By overload of these ATen operators, a function that makes the same of other operators."""
    found = get_decompositions([getattr(torch.ops.aten, name) for name in names])
    return {op: function for op, function in found.items() if isinstance(op, OpOverload)}
