"""Regions of a recording: checkpoints, and autograd Functions, whose backward is recorded as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ...torch_internals.tracer import is_tracing, node_of
from .containers import Tree, flatten, unflatten
from .lines import calls_model, current_line
from .numbers import KnownNumbers
from .recording import Backward, GraphRegion
from .tracing import Fakes, trace


@dataclass
class _FunctionCall:
    """What the backward of a Function needs to know of one call."""

    kind: type[torch.autograd.Function]
    line: str
    attributes: Tree | None = None
    needed: tuple[bool, ...] = ()
    tensors: list[Tensor] = field(default_factory=list)
    """All tensors that backward may read: the saved ones, and attributes of its context."""
    nodes: tuple[str, ...] = ()
    outputs: list[Tensor] = field(default_factory=list)
    output_nodes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


class Regions:
    """The regions found so far, and the stack of those that are open."""

    def __init__(self) -> None:
        self.found: dict[int, GraphRegion] = {}
        self._functions: dict[int, _FunctionCall] = {}
        self._stack: list[int] = []
        self._parents: dict[int, int | None] = {}
        self._saved: dict[int, list[Tensor]] = {}
        """What calls that are not complete save, by the identities of their contexts."""
        self._last_forward = 0
        """The region of the last call of a forward without a context."""

    @property
    def current(self) -> int | None:
        return self._stack[-1] if self._stack else None

    def enclosing(self, number: int | None) -> int | None:
        """The region of this number if it was kept, else the innermost kept one around it."""
        while number is not None and number not in self.found:
            number = self._parents[number]
        return number

    @contextmanager
    def inside(self, kind: Literal["checkpoint", "function"], keeps_random_state: bool = True) -> Iterator[int]:
        number = len(self._parents) + 1
        self._parents[number] = self.current
        if kind == "checkpoint" and torch.is_grad_enabled():
            self.found[number] = GraphRegion(number, kind, self.enclosing(self.current), keeps_random_state)
        self._stack.append(number)
        try:
            yield number
        finally:
            self._stack.pop()

    def checkpoint(self, keeps_random_state: bool) -> AbstractContextManager[int]:
        """Around a function that `torch.utils.checkpoint` would recompute."""
        return self.inside("checkpoint", keeps_random_state)

    def saving(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Replaces `save_for_backward` while a call is recorded."""

        @calls_model
        def save(context: torch.autograd.function.FunctionCtx, *tensors: Tensor) -> None:
            plain(context, *tensors)
            if (saved := self._saved.get(id(context))) is not None:
                saved[:] = tensors

        return save

    @contextmanager
    def _of_call(self, context: object) -> Iterator[list[Tensor]]:
        """What a call saves in the body."""
        saved = self._saved[id(context)] = list[Tensor]()
        try:
            yield saved
        finally:
            del self._saved[id(context)]

    def forward_noted(self, kind: type[torch.autograd.Function], plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replaces the static method `forward` of a Function; torch's `apply` calls it without autograd.

        A Function with a `setup_context` is complete when that has been called, directly afterwards. One within a
        recorded operator, whose own gradient it is, is not noted.
        """
        if not is_tracing():
            return plain

        @calls_model
        @wraps(plain)
        def forward(*args: Any, **named: Any) -> Any:
            context = args[0] if args and isinstance(args[0], BackwardCFunction) else None
            if context is None:
                with self.inside("function") as self._last_forward:
                    return _apart_from(args, plain(*args, **named))
            if id(context) in self._saved:  # called by the forward of a Function that inherits from this one
                return plain(*args, **named)
            with self._of_call(context) as saved:
                with self.inside("function") as number:
                    result = _apart_from(args, plain(*args, **named))
                self._note(number, kind, context, args[1:], result, saved)
            return result

        return forward

    def context_set_up(self, kind: type[torch.autograd.Function], plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replaces the static method `setup_context` of a Function."""
        if not is_tracing():
            return plain

        @calls_model
        @wraps(plain)
        def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(context, BackwardCFunction) or id(context) in self._saved:
                return plain(context, inputs, output)
            with self._of_call(context) as saved:
                plain(context, inputs, output)
                self._note(self._last_forward, kind, context, inputs, output, saved)
            return None

        return setup_context

    def _note(
        self,
        number: int,
        kind: type[torch.autograd.Function],
        context: Any,
        args: Sequence[Any],
        result: Any,
        saved: Sequence[Tensor],
    ) -> None:
        """Note a call whose forward made the nodes of region `number`, if it is differentiated."""
        if not context.next_functions:
            return
        call = self._functions[number] = _FunctionCall(kind, current_line())
        call.needed = tuple(context.needs_input_grad)
        inputs = [x for x, needed in zip(args, call.needed, strict=False) if needed]
        call.tensors, call.attributes = flatten((tuple(saved), dict(vars(context))))
        call.nodes = tuple(node_of(x).name for x in call.tensors)
        call.inputs = tuple(node_of(x).name for x in inputs)
        call.outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if isinstance(y, Tensor)]
        call.output_nodes = tuple(node_of(y).name for y in call.outputs)
        self.found[number] = GraphRegion(number, "function", self.enclosing(self._parents[number]))

    def record_backwards(self, fakes: Fakes) -> None:
        """Record the backward of every function that was kept."""
        for number, call in self._functions.items():
            region = self.found.pop(number)
            if any(y.requires_grad for y in call.outputs):  # not all are integers, or marked as not differentiable
                backward = _recorded(call, fakes)
                self.found[number] = GraphRegion(number, "function", region.within, backward=backward)
        self._functions.clear()


def _apart_from(args: Sequence[Any], result: Any) -> Any:
    """What a forward returns, with views in place of its arguments, as `apply` makes them: nodes of the region."""
    if isinstance(result, tuple):
        return tuple(_apart_from(args, y) for y in result)
    return result.view_as(result) if isinstance(result, Tensor) and any(result is x for x in args) else result


def _recorded(call: _FunctionCall, fakes: Fakes) -> Backward:
    held, gradients = [fakes.empty(x) for x in call.tensors], [fakes.empty(y) for y in call.outputs]
    inputs: list[str] = []

    @calls_model
    def backward(*tensors: Tensor) -> list[Tensor]:
        assert call.attributes is not None
        saved, attributes = unflatten(call.attributes, tensors[: len(held)])
        given = {"saved_tensors": saved, "saved_variables": saved, "needs_input_grad": call.needed}
        given["input_grad_buffers"] = (None,) * len(call.needed)  # since torch 2.15; allowed to have nothing
        context = SimpleNamespace(**{**attributes, **given})
        result = call.kind.backward(context, *tensors[len(held) :])
        made = result if isinstance(result, tuple) else (result,)
        wanted = [g for g, needed in zip(made, call.needed, strict=False) if needed]
        found = [(name, g) for name, g in zip(call.inputs, wanted, strict=True) if g is not None]
        inputs.extend(name for name, _ in found)
        return [g for _, g in found]

    names = [
        *(f"tensor {i} of the context" for i in range(len(held))),
        *(f"gradient {i}" for i in range(len(gradients))),
    ]
    numbers = KnownNumbers(dict.fromkeys(names))
    line = lambda meta: meta.update(line=current_line() or call.line)  # noqa: E731
    module = trace(backward, fakes, [*held, *gradients], line, numbers)
    return Backward(call.kind, module, call.nodes, call.output_nodes, tuple(inputs))
