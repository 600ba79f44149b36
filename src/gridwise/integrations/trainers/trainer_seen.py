"""What of the Trainer a step may read while it is recorded: numbers, which are noted, and nothing that acts.

A recorded step is valid as long as what it has read is the same, as `current_epoch` is within an epoch.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any, NoReturn

from ...errors import UnsupportedError

PLAIN = (bool, int, float, str, enum.Enum, type(None))
CHANGES_ALWAYS = {"trainer.global_step", "batch_idx"}
"""What is different in every step of training."""

Note = Callable[[str, Any], None]


class TrainerSeen:
    """In the place of the Trainer, while a step is recorded: its numbers, with a note of each that is read."""

    def __init__(self, trainer: Any, note: Note, says: str) -> None:
        self.__dict__.update(_trainer=trainer, _note=note, _says=says)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._trainer, name)
        if not isinstance(value, PLAIN):
            self._refuse(name)
        self._note(f"trainer.{name}", value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise UnsupportedError(
            f"{self._says} uses `self.trainer.{name}`, and is recorded once for many batches: it would act once.\n  fix: do it "
            "in a hook (on_train_batch_end, on_validation_batch_end), which gets what the step returns; or give the model and "
            "the loss to gridwise.distribute yourself, and the step runs as it is written."
        )


class NumberSeen:
    """A number that differs from call to call, as `batch_idx` does, with a note if the step uses it."""

    def __init__(self, name: str, value: int, note: Note) -> None:
        self._name, self._value, self._note = name, value, note

    def _read(self) -> int:
        self._note(self._name, self._value)
        return self._value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __repr__(self) -> str:
        return repr(self._read())

    def __bool__(self) -> bool:
        return bool(self._read())

    def __hash__(self) -> int:
        return hash(self._read())

    def __format__(self, spec: str) -> str:
        return format(self._read(), spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read(), name)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: function(self._read())


def _binary(function: Callable[..., Any], is_swapped: bool) -> Callable[..., Any]:
    def call(self: Any, other: Any) -> Any:
        mine, theirs = self._read(), other._read() if type(other) is NumberSeen else other
        return function(theirs, mine) if is_swapped else function(mine, theirs)

    return call


for _name in ("index", "int", "float", "neg", "abs", "str"):
    _function = {"int": int, "float": float, "str": str}.get(_name) or getattr(operator, f"__{_name}__")
    setattr(NumberSeen, f"__{_name}__", _unary(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "mod", "floordiv", "truediv", "pow"):
    setattr(NumberSeen, f"__{_name}__", _binary(getattr(operator, f"__{_name}__"), False))
for _name in ("add", "sub", "mul", "mod", "floordiv", "truediv", "pow"):
    setattr(NumberSeen, f"__r{_name}__", _binary(getattr(operator, f"__{_name}__"), True))
