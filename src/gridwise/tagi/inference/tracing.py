"""A function of tensors as a graph, and whether the layers are being turned into one now.

A layer that is traced keeps no memory of its own, looks at no values, and leaves the planning to the compiler.
`is_traced` is also true inside a `torch.compile` of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

_TRACED = ContextVar("gridwise_tagi_traced", default=False)


def is_traced() -> bool:
    """Whether the layers are run to learn what they do, rather than to do it."""
    return torch.compiler.is_compiling() or _TRACED.get()


def trace(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> GraphModule:
    """The graph of `function(*tensors)`; nothing is computed, and the tensors keep their values."""
    token = _TRACED.set(True)
    try:
        return make_fx(function, tracing_mode="fake")(*tensors)
    finally:
        _TRACED.reset(token)
