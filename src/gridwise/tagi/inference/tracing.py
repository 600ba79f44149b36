"""Tracing a function of tensors into a graph, and whether the layers are being traced.

A layer that is traced keeps no buffers, inspects no values, and leaves memory planning to the compiler. `is_traced` is
also true inside a `torch.compile` of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.fx import GraphModule

_TRACED = ContextVar("gridwise_tagi_traced", default=False)


def is_traced() -> bool:
    """Whether the layers are being traced or compiled, rather than run."""
    return torch.compiler.is_compiling() or _TRACED.get()


@contextmanager
def traced() -> Iterator[None]:
    """In the body, the layers are being traced."""
    token = _TRACED.set(True)
    try:
        yield
    finally:
        _TRACED.reset(token)


def trace(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> GraphModule:
    """The graph of `function(*tensors)`; nothing is computed, and the tensors keep their values."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes seconds to import, and native steps do not need it

    with traced():
        return make_fx(function, tracing_mode="fake")(*tensors)
