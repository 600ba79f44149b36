"""Torch's tracer beneath `torch.export`, and the fake tensors that it runs on. Importing this takes seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch.fx
from torch import Tensor
from torch._decomp import decompositions
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.fake_tensor import FakeTensor as TracedTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing as untraced
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, track_tensor_tree
from torch.fx.experimental.proxy_tensor import make_fx as make_fx

__all__ = ["NEEDS_NUMBERS", "TracedTensor", "TracedTensorMode", "make_fx", "untraced"]

NEEDS_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException)
"""Raised by an operator whose result, or the size of it, depends on the values of a tensor; a fake has none."""


class TracedTensorMode(FakeTensorMode):
    """The mode of these fakes; an operator that needs numbers is asked of `answer`, and has failed if that gives None."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.answer: Callable[[Any, Sequence[Any], dict[str, Any]], Any] = lambda operator, args, kwargs: None
        self.unanswered: list[Exception] = []
        """The errors of operators that failed, even if the model's code has caught them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.unanswered)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        except NEEDS_NUMBERS as error:
            answer = self.answer(func, args, kwargs or {})
            if answer is None:
                if error not in self.unanswered:
                    self.unanswered.append(error)
                raise
            del self.unanswered[before:]
            return answer


def is_tracing() -> bool:
    """Whether operators are being recorded here, in this thread, and not within an operator."""
    return get_proxy_mode() is not None


def current_tracer() -> Any:
    mode = get_proxy_mode()
    assert mode is not None
    return mode.tracer


def node_of(x: Tensor, tracer: Any = None) -> torch.fx.Node:
    """The node whose value is `x`, in the graph that is being made, or that `tracer` has made; a KeyError if none is."""
    found: Any = get_proxy_slot(x, tracer or current_tracer(), None)
    if found is None:
        raise KeyError("the tensor is not in the graph")
    return found.proxy.node


def become(fake: Tensor, real: Tensor) -> None:
    """Make a fake the tensor `real`, for all that refer to it; `real` is the fake then."""
    fake.__class__, real.__class__ = real.__class__, fake.__class__
    fake.__dict__, real.__dict__ = real.__dict__, fake.__dict__
    torch._C._swap_tensor_impl(fake, real)


def noted_call(function: Callable[..., Any], args: tuple[Any, ...], result: Any) -> None:
    """Add a node to the graph that is being made: the call of a function of tensors, of which `result` is the value."""
    tracer = current_tracer()

    def proxied(value: Any) -> Any:
        if isinstance(value, list):
            return [proxied(part) for part in value]
        return get_proxy_slot(value, tracer).proxy if isinstance(value, Tensor) else value

    with untraced():
        proxy = tracer.create_proxy("call_function", function, tuple(map(proxied, args)), {})
        track_tensor_tree(result, proxy, constant=None, tracer=tracer)


def as_if_not_traced() -> AbstractContextManager[object]:
    """Clear torch's flag that symbolic tracing is on, which a model may read; the flag is one of a thread since 2.14."""
    tracing: Any = torch.fx._symbolic_trace
    if hasattr(tracing, "_is_fx_tracing_context"):
        return tracing._is_fx_tracing_context(False)
    return patch.object(tracing, "_is_fx_tracing_flag", False)


class _Quiet(logging.Filter, threading.local):
    """Holds back, in one thread, what torch logs of an operator that fails on fakes: its traceback, of many lines."""

    depth = 0

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.depth


_quiet = _Quiet()
logging.getLogger(fake_tensor.__name__).addFilter(_quiet)


@contextmanager
def failures_not_logged() -> Iterator[None]:
    """In the body, a failure of an operator on fakes is only raised."""
    _quiet.depth += 1
    try:
        yield
    finally:
        _quiet.depth -= 1


def lstm_states_fixed(around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> AbstractContextManager[object]:
    """In torch 2.11, an LSTM gives the final states of fakes a dim too many, and is replaced in the body."""
    if not str(torch.__version__).startswith("2.11."):
        return nullcontext()
    torchs = decompositions.one_layer_lstm

    def one_layer_lstm(*args: Any, **kwargs: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, states = torchs(*args, **kwargs)
        h, c = (state.squeeze(0) if state.dim() == 3 else state for state in states)
        return outputs, (h, c)

    return patch.object(decompositions, "one_layer_lstm", around(one_layer_lstm))
