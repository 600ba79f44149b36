"""Torch's Python functions for operators that models call often.

A call through an `OpOverload` converts its arguments one by one. The torch function of the same name takes the same
arguments in the same order, in about two thirds of the time, which matters where the host launches small kernels for a
device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..torch_internals.operators import OpOverload, kernels_of_nn, name_of

_aten, _nn = torch.ops.aten, kernels_of_nn


def _copied(x: Tensor, new: Tensor, non_blocking: bool = False) -> Tensor:
    """`new` in the shape, dtype and layout of `x`; torch has no gradient of its own operator."""
    return torch.empty_like(x).copy_(new, non_blocking)


_NAMES = (
    "conv1d", "conv2d", "conv3d", "batch_norm", "group_norm", "layer_norm", "max_pool2d", "relu", "relu_",
    "sigmoid", "tanh", "cat", "matmul", "bmm",
)  # fmt: skip
_FUNCTIONS: dict[OpOverload, Callable[..., Any]] = {
    **{getattr(_aten, name).default: getattr(torch, name) for name in _NAMES},
    _aten.conv_transpose2d.input: torch.conv_transpose2d,
    _aten.copy.default: _copied,
    _aten.add.Tensor: torch.add,
    _aten.add_.Tensor: torch.Tensor.add_,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.div.Tensor: torch.div,
    _aten.softmax.int: torch.softmax,
    _aten.linear.default: _nn.linear,
    _aten.gelu.default: _nn.gelu,
    _aten.silu.default: _nn.silu,
    _aten.adaptive_avg_pool2d.default: _nn.adaptive_avg_pool2d,
    _aten.scaled_dot_product_attention.default: _nn.scaled_dot_product_attention,
}


def short_name(op: OpOverload) -> str:
    """The operator's name without its namespace and overload, as in "add_"."""
    return name_of(op).partition("::")[2]


def function_of(op: OpOverload) -> Callable[..., Any]:
    """The function to call for an operator, with the arguments of its schema."""
    return _FUNCTIONS.get(op, op)
