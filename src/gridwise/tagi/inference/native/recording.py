"""A step as the list of operators that it calls, made by running it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ....torch_internals.modes import OperatorMode
from ..tracing import traced


class RecordedCall(NamedTuple):
    """An operator, without its namespace and overload, and what it was called with."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


class Recorded(NamedTuple):
    """The calls of a step and the tensors that it returned."""

    calls: list[RecordedCall]
    outputs: list[Tensor]

    def uses(self) -> dict[int, int]:
        """How often each tensor is used, by its id."""
        found: Counter[int] = Counter()
        for call in self.calls:
            found.update(id(x) for x in tensors_in((call.args, call.kwargs)))
        found.update(id(x) for x in self.outputs)
        return dict(found)

    def tensors(self) -> dict[int, Tensor]:
        """All tensors that are used, by their ids."""
        return {id(x): x for call in self.calls for x in tensors_in((call.args, call.kwargs))}


class _Recorder(OperatorMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append(RecordedCall(func.overloadpacket.__name__, args, kwargs or {}, out))
        return out


def record(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> Recorded:
    """What `function` does to `tensors`, which it changes as it does."""
    with traced(), _Recorder() as recorder:
        outputs = function(*tensors)
    return Recorded(recorder.calls, outputs)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [x for part in parts for x in tensors_in(part)]
