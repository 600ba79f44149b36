"""`torch.compile` of a distributed model: what lies between two movements is compiled, and the movements are made between.

The compiler traces the code around the model's call, and leaves the call itself to us. In the first call all steps run as they
are, and it is noted which of them move something, now or in backward. Then each run of the others is a function of tensors,
which is run in the hands of the same compiler, with the settings that it was given. Its functions stay the same from call to
call: nothing is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..comm.graph_breaks import captured_by
from .program import Checkpoint, Step, Values, execute
from .random import RandomStream

if TYPE_CHECKING:
    from torch._dynamo.types import DynamoCallback

FEWEST = 2
"""Steps that are worth compiling."""


_compiler: ContextVar[DynamoCallback] = ContextVar("compiler", default=None)


def compiler() -> DynamoCallback:
    """What compiles the code around the call of a model, if anything does."""
    return _compiler.get()


def called_by_compiled_code(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """`call`, outside of the graph that is being compiled; the model's own pieces are compiled by the same compiler."""
    return torch.compiler.disable(_with_compiler, recursive=False)(call, *args, **kwargs)


called_by_compiled_code._torchdynamo_disable = True  # type: ignore[attr-defined]  # see `outside_of_graphs`


def _with_compiler(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    with _compiling(None) as callback:
        token = _compiler.set(callback)
        try:
            return call(*args, **kwargs)
        finally:
            _compiler.reset(token)


@contextmanager
def _compiling(callback: DynamoCallback) -> Iterator[DynamoCallback]:
    """Let `callback` compile what is called in the body; it is given what did so before."""
    before = torch._C._dynamo.eval_frame.set_eval_frame(callback)
    try:
        yield before
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(before)


class _Probe:
    """Notes whether a step moves something, or will in backward (as `comm.graph_breaks.Breaks`)."""

    def __init__(self) -> None:
        self.moves = False

    def node(self) -> None:
        self.moves = True

    def moved(self, call: Callable[[], Any]) -> Any:
        self.moves = True
        with captured_by(None):
            return call()

    read = drawn = moved


class CompiledPieces:
    """The steps of a program, those without movements compiled."""

    def __init__(self, steps: Sequence[Step], results: Sequence[int]) -> None:
        self._steps, self._results = steps, set(results)
        self._parts: list[_Piece | list[Step]] = []

    def __call__(self, values: Values, stream: RandomStream) -> None:
        if not self._parts:
            self._cut([self._is_local(step, values, stream) for step in self._steps])
            return
        for part in self._parts:
            if isinstance(part, _Piece):
                part(values)
            else:
                execute(part, values, stream)

    def _is_local(self, step: Step, values: Values, stream: RandomStream) -> bool:
        """Whether a step makes tensors of tensors and nothing else; it is carried out."""
        probe, given = _Probe(), [values[slot] for slot in step.inputs]
        with captured_by(probe):
            execute([replace(step, frees=())], values, stream)
        made = [values[slot] for slot in step.made]
        for slot in step.frees:
            values[slot] = None
        if probe.moves or step.draws or isinstance(step.run, Checkpoint) or not given or not made:
            return False
        return all(isinstance(value, Tensor) for value in (*given, *made))

    def _cut(self, local: Sequence[bool]) -> None:
        """Make pieces of the steps that are `local`."""
        parts: list[tuple[bool, list[Step]]] = []
        for step, is_local in zip(self._steps, local, strict=True):
            if not parts or parts[-1][0] != is_local:
                parts.append((is_local, []))
            parts[-1][1].append(step)
        later = set(self._results)
        for is_local, steps in reversed(parts):
            self._parts.insert(0, _Piece(steps, later) if is_local and len(steps) >= FEWEST else steps)
            later |= {slot for step in steps for slot in step.inputs}


class _Piece:
    """Some steps as one function of tensors."""

    def __init__(self, steps: Sequence[Step], later: set[int]) -> None:
        made = {slot for step in steps for slot in step.made}
        needed = {slot for step in steps for slot in step.inputs}
        self.inputs, self.outputs = tuple(sorted(needed - made)), tuple(sorted(made & later))
        self.frees = [slot for step in steps for slot in step.frees]
        calls = [(step.run, step.inputs, step.outputs) for step in steps]
        inputs, outputs = self.inputs, self.outputs

        def run(*tensors: Tensor) -> tuple[Any, ...]:
            values: dict[int, Any] = dict(zip(inputs, tensors, strict=True))
            for call, given, places in calls:
                result = call(*[values[slot] for slot in given])
                if isinstance(places, int):
                    values[places] = result
                elif places is not None:
                    for slot, part in zip(places, result, strict=True):
                        values[slot] = part
            return tuple([values[slot] for slot in outputs])

        # code of its own: the compiler keeps a few graphs for each
        self.run = FunctionType(run.__code__.replace(), run.__globals__, "piece", None, run.__closure__)

    def __call__(self, values: Values) -> None:
        given = [values[slot] for slot in self.inputs]
        with _compiling(compiler()):
            made = self.run(*given)
        for slot, value in zip(self.outputs, made, strict=True):
            values[slot] = value
        for slot in self.frees:
            values[slot] = None
