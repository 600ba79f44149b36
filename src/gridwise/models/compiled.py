"""`torch.compile` of a distributed model: the pieces between movements are compiled, the movements run between them.

The compiler traces the code around the model's call, and leaves the call itself to us. The first call runs all steps
uncompiled, and notes which of them communicate, in forward or in backward. From then on each sequence of other steps is
a function of tensors, which the same compiler compiles with the user's settings. The functions stay the same from call
to call, so nothing is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..comm.graph_breaks import captured_by
from ..operators.random.random_stream import RandomStream
from ..torch_internals.compiler import Compiler, compiling
from .inner_gradients import Differentiation
from .program import Checkpoint, Step, Values, execute, put

FEWEST = 2
"""The smallest number of consecutive steps worth compiling."""


_compiler: ContextVar[Compiler] = ContextVar("compiler", default=None)


def compiler() -> Compiler:
    """The compiler of the code around the call of a model, if there is one."""
    return _compiler.get()


def called_by_compiled_code(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Make the call outside of the graph that is being compiled; its pieces are compiled by the same compiler."""
    return torch.compiler.disable(_with_compiler, recursive=False)(call, *args, **kwargs)


called_by_compiled_code._torchdynamo_disable = True  # type: ignore[attr-defined]  # see `outside_of_graphs`


def _with_compiler(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    with compiling(None) as callback:
        token = _compiler.set(callback)
        try:
            return call(*args, **kwargs)
        finally:
            _compiler.reset(token)


class _Probe:
    """Notes whether a step communicates, now or in backward; has the interface of `comm.graph_breaks.GraphCapture`."""

    def __init__(self) -> None:
        self.moves = False

    def note_node(self) -> None:
        self.moves = True

    def run_between_graphs(self, call: Callable[[], Any]) -> Any:
        self.moves = True
        with captured_by(None):
            return call()

    read_once = draw_each_replay = run_between_graphs


class CompiledPieces:
    """The steps of a program, compiled where they do not communicate."""

    def __init__(self, steps: Sequence[Step], results: Sequence[int]) -> None:
        self._steps, self._results = steps, set(results)
        self._compiled: list[Step] = []

    def __call__(self, values: Values, stream: RandomStream) -> None:
        if self._compiled:
            execute(self._compiled, values, stream)
        else:
            self._cut([self._is_local(step, values, stream) for step in self._steps])

    def _is_local(self, step: Step, values: Values, stream: RandomStream) -> bool:
        """Execute a step; whether it only makes tensors from tensors, without communication or random numbers."""
        probe, given = _Probe(), [values[slot] for slot in step.inputs]
        with captured_by(probe):
            execute([replace(step, frees=())], values, stream)
        made = [values[slot] for slot in step.made]
        for slot in step.frees:
            values[slot] = None
        if probe.moves or step.draws or isinstance(step.run, Checkpoint | Differentiation) or not given or not made:
            return False
        return all(isinstance(value, Tensor) for value in (*given, *made))

    def _cut(self, local: Sequence[bool]) -> None:
        """Cut the steps into pieces of consecutive local ones, and the rest."""
        parts: list[tuple[bool, list[Step]]] = []
        for step, is_local in zip(self._steps, local, strict=True):
            if not parts or parts[-1][0] != is_local:
                parts.append((is_local, []))
            parts[-1][1].append(step)
        later = set(self._results)
        for is_local, steps in reversed(parts):
            self._compiled[:0] = [_piece(steps, later)] if is_local and len(steps) >= FEWEST else steps
            later |= {slot for step in steps for slot in step.inputs}


def _piece(steps: Sequence[Step], later: set[int]) -> Step:
    """Consecutive steps as one, which runs a compiled function of tensors; `later` are the slots that are read later."""
    made = {slot for step in steps for slot in step.made}
    inputs = tuple(sorted({slot for step in steps for slot in step.inputs} - made))
    outputs = tuple(sorted(made & later))
    calls = [(step.run, step.inputs, step.outputs) for step in steps]

    def run(*tensors: Tensor) -> tuple[Any, ...]:
        values: dict[int, Any] = dict(zip(inputs, tensors, strict=True))
        for call, given, places in calls:
            put(values, places, call(*[values[slot] for slot in given]))
        return tuple([values[slot] for slot in outputs])

    # a code object of its own: the compiler keeps only a few graphs per code object
    piece = FunctionType(run.__code__.replace(), run.__globals__, "piece", None, run.__closure__)

    def compiled(*tensors: Tensor) -> tuple[Any, ...]:
        with compiling(compiler()):
            return piece(*tensors)

    return Step(compiled, inputs, outputs, frees=tuple(slot for step in steps for slot in step.frees))
