"""Tracing: one run of a function on fake tensors, as a graph of its operators. All use of torch's tracer is here.

This uses the tracer beneath `torch.export` (``make_fx``, above autograd) directly; its graphs are export's training IR.
Export itself would refuse classes that are not registered with it, undo a model's assignments, make
`torch.compiler.is_compiling()` true, so that a model may take another branch, and take four times as long.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ...torch_internals.modes import without_modes, without_saved_tensor_hooks
from ...torch_internals.operators import OpOverload, composite_operators, is_cast_by_autocast, schema_of
from ...torch_internals.tracer import (
    TracedTensor,
    TracedTensorMode,
    current_tracer,
    lstm_states_fixed,
    make_fx,
)
from ..rules.composed import compositions
from ..rules.pointwise import is_pointwise
from ..rules.table import rule_for
from .lines import calls_model
from .numbers import KnownNumbers


@dataclass(frozen=True)
class InputSpec:
    """The structure of a global input."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    format: torch.memory_format = torch.contiguous_format

    def __str__(self) -> str:
        return f"{self.shape}, {self.dtype}"


class Fakes:
    """Makes fake tensors of one common mode."""

    def __init__(self) -> None:
        self.mode = TracedTensorMode(allow_non_fake_inputs=True)

    def like(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A fake of `shape` with the class, dtype and device of a tensor, and with its strides if it has that shape."""
        with self.mode:
            if tuple(x.shape) == shape:
                fake = torch.empty_strided(shape, x.stride(), dtype=x.dtype, device=x.device)
            else:
                fake = torch.empty(shape, dtype=x.dtype, device=x.device)
        if isinstance(x, torch.nn.Parameter):
            return torch.nn.Parameter(fake, x.requires_grad)
        return fake.requires_grad_(x.requires_grad)

    def empty(self, x: Tensor | InputSpec) -> Tensor:
        """A dense fake with the shape, dtype and device of a tensor."""
        format = x.format if isinstance(x, InputSpec) else torch.contiguous_format
        with self.mode:
            return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=format)


def trace(
    function: Callable[..., Sequence[Tensor]],
    fakes: Fakes,
    inputs: Sequence[Tensor],
    note: Callable[[dict[str, Any]], None],
    numbers: KnownNumbers,
) -> torch.fx.GraphModule:
    """The graph of ``function(*inputs)``; `note` adds to the meta of every node when it is created."""

    @calls_model
    def annotated(*inputs: Tensor) -> Sequence[Tensor]:
        tracer = current_tracer()
        numbers.follow(tracer, fakes.mode)
        make = tracer.create_node

        def create_node(*args: object, **kwargs: object) -> torch.fx.Node:
            node = make(*args, **kwargs)
            note(node.meta)
            return node

        tracer.create_node = create_node
        try:
            return tuple(function(*inputs))
        finally:
            del tracer.create_node

    apart: dict[OpOverload, Callable[..., Any]] = {
        op: partial(_apart, op) for op in _composites() if rule_for(op) is None and not is_pointwise(op)
    }
    apart |= {op: function for op, function in compositions().items() if rule_for(op) is None}
    with fakes.mode, lstm_states_fixed(calls_model):
        module = make_fx(annotated, apart, pre_dispatch=True, tracing_mode="real")(*inputs)
    numbers.fold(module, fakes.mode)
    return module


@cache
def _composites() -> list[OpOverload]:
    """Operators on tensors that torch composes of others; those without a rule are recorded as these others."""
    found = []
    for op in composite_operators():
        returns = [str(each.type) for each in schema_of(op).returns]
        if returns and all("Tensor" in each for each in returns) and not schema_of(op).is_mutable:
            found.append(op)
    return found


@calls_model
def _apart(op: OpOverload, *args: object, **kwargs: object) -> Any:
    """Decompose a composite operator, unless autocast is on and has a kernel for the operator itself."""
    return NotImplemented if is_cast_by_autocast(op) else op.decompose(*args, **kwargs)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hide the fakes from dispatch modes and saved-tensor hooks that are active around the first call of a model."""
    with without_saved_tensor_hooks(), without_modes():
        yield


def is_fake(x: object) -> bool:
    return isinstance(x, TracedTensor)


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep objects made in the body in the youngest generation of the garbage collector, for `kept_fakes`."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
