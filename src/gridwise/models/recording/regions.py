"""Regions of a recording: checkpoints, and autograd Functions, whose backward is recorded as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from .containers import Tree, flatten, unflatten
from .recording import Backward, GraphRegion
from .tracing import Fakes, current_line, node_of, trace


@dataclass
class _FunctionCall:
    """What the backward of a Function needs to know of one call."""

    kind: type[torch.autograd.Function]
    line: str
    saved: list[Tensor] = field(default_factory=list)
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
        yield number
        self._stack.pop()

    def checkpointed(self, function: object, preserve: bool, *rest: object, **named: object) -> Iterator[None]:
        """Replaces the generator of `torch.utils.checkpoint`, which runs up to its `yield` before the function does."""
        with self.inside("checkpoint", preserve):
            yield

    def save(self, context: torch.autograd.function.FunctionCtx, *tensors: Tensor) -> None:
        """Replaces `save_for_backward` while a call is recorded."""
        context.to_save = tensors
        if self._stack and self._stack[-1] in self._functions:
            self._functions[self._stack[-1]].saved = list(tensors)

    def applied(self, kind: type[torch.autograd.Function], args: Sequence[Any], apply: Callable[[], Any]) -> Any:
        """Call ``apply()``, which is ``kind.apply(*args)``, and note the call if it is differentiated."""
        with self.inside("function") as number:
            call = self._functions[number] = _FunctionCall(kind, current_line())
            result = apply()
        outputs = [y for y in flatten(result)[0] if y.requires_grad]
        if not outputs:
            return result
        context: Any = next(y.grad_fn for y in outputs)
        call.needed = tuple(context.needs_input_grad)
        inputs = [x for x, needed in zip(args, call.needed, strict=False) if needed]
        call.tensors, call.attributes = flatten((tuple(call.saved), dict(vars(context))))
        call.nodes = tuple(node_of(x).name for x in call.tensors)
        call.inputs = tuple(node_of(x).name for x in inputs)
        call.outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if isinstance(y, Tensor)]
        call.output_nodes = tuple(node_of(y).name for y in call.outputs)
        self.found[number] = GraphRegion(number, "function", self.enclosing(self._parents[number]))
        return result

    def record_backwards(self, fakes: Fakes) -> None:
        """Record the backward of every function that was kept."""
        for number, region in self.found.items():
            if region.kind == "function":
                backward = _recorded(self._functions[number], fakes)
                self.found[number] = GraphRegion(number, "function", region.within, backward=backward)
        self._functions.clear()


def _recorded(call: _FunctionCall, fakes: Fakes) -> Backward:
    held, gradients = [fakes.empty(x) for x in call.tensors], [fakes.empty(y) for y in call.outputs]
    inputs: list[str] = []

    def backward(*tensors: Tensor) -> list[Tensor]:
        assert call.attributes is not None
        saved, attributes = unflatten(call.attributes, tensors[: len(held)])
        context = SimpleNamespace(**{**attributes, "saved_tensors": saved, "needs_input_grad": call.needed})
        result = call.kind.backward(context, *tensors[len(held) :])
        given = result if isinstance(result, tuple) else (result,)
        wanted = [g for g, needed in zip(given, call.needed, strict=False) if needed]
        found = [(name, g) for name, g in zip(call.inputs, wanted, strict=True) if g is not None]
        inputs.extend(name for name, _ in found)
        return [g for _, g in found]

    module = trace(backward, fakes, [*held, *gradients], lambda meta: meta.update(line=current_line() or call.line))
    return Backward(call.kind, module, call.nodes, call.output_nodes, tuple(inputs))
