"""Checks on values: branches that depend on the numbers of a tensor, and of which one side only raises an error.

    assert x.min() >= 0          recorded as ``_assert_async(x.min() >= 0, "check 0")``, and the call goes on
    if x.isnan().any(): raise    likewise, of the contrary

The graph is that of a call all of whose checks hold. Should one fail at run time, the call is recorded once more with that
check as failing: up to the model's own error, with the tensors that are quoted in its message as outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ...errors import UnsupportedError
from ...torch_internals.operators import OpOverload, assert_async, asserted, name_of
from ...torch_internals.tracer import NEEDS_NUMBERS, TracedTensor, node_of, untraced
from .branches import value_that_goes_on
from .lines import calls_model

ASKS = (Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero, asserted)
COMPARES = (Tensor.equal, torch.equal, Tensor.allclose, torch.allclose)
ANSWERED = ASKS + COMPARES
QUOTES = (Tensor.__repr__, Tensor.__format__, Tensor.item)
CHECK = "check "
"""The message of a recorded check, with its number; anything else is that of an assertion of the model itself."""
MARK = re.compile("\x00(\\d+)\x00")


def is_check(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and name_of(node.target) == "aten::_assert_async"


def named(node: Node) -> tuple[str, str]:
    """The line of a check, and its message."""
    message = node.args[1] if len(node.args) > 1 else ""
    return str(node.meta.get("line") or ""), str(message)


def failing(message: str) -> Checks | RuntimeError:
    """Those with which the call is recorded anew, after the check of this message has failed.

    For an assertion of the model itself, ``torch._assert_async``, the error that torch raises.
    """
    if not message.startswith(CHECK):
        return RuntimeError(message or "Assertion is failed")
    return Checks(fails=int(message.removeprefix(CHECK)))


class Checks:
    """The checks of one recording, numbered in the order of the code.

    Parameters
    ----------
    skips : whether they are left out, as if all held
    fails : the number of the one to be recorded as failing, if any
    """

    def __init__(self, skips: bool = False, fails: int | None = None) -> None:
        self.skips, self.fails = skips or fails is not None, fails
        self._error: BaseException | None = None
        self.begin([])

    def begin(self, errors: list[Exception]) -> None:
        """Begin with a call; operators that need numbers note their errors in the list."""
        self.count, self.has_failed, self._noted = 0, False, errors
        self._failed: Node | None = None
        self._truth = False
        self._quoted, self._texts = list[Tensor](), list[Callable[[Sequence[Tensor]], str]]()

    @calls_model
    def answer(self, function: Callable[..., Any], args: Sequence[Any], given: dict[str, Any], frame: FrameType) -> Any:
        """The answer of one of the functions in `ASKS` and `COMPARES`, for which the code at hand in `frame` asks."""
        before = len(self._noted)
        try:
            with untraced():
                return function(*args, **given)
        except NEEDS_NUMBERS:
            asserts = function is asserted
            is_result = function is not Tensor.__bool__
            goes_on = asserts or value_that_goes_on(frame, is_result, "" if is_result else _made_by(args[0]))
            if goes_on is None:
                raise
            del self._noted[before:]
        if self.has_failed and function in ASKS and node_of(args[0]) is self._failed:  # asked again
            return self._truth
        number, self.count = self.count, self.count + 1
        if number == self.fails:
            self.has_failed, self._failed, self._truth = True, node_of(args[0]), not goes_on
            if asserts:
                raise AssertionError(*args[1:])
            return not goes_on
        if not self.skips:
            condition = _condition(function, args, given)
            assert_async(condition if goes_on else condition.logical_not(), f"{CHECK}{number}")
        return goes_on

    # Recording the error of a check that fails

    def until_error(self, call: Callable[..., Any]) -> Callable[..., list[Tensor]]:
        """`call`, up to its error: the tensors that are quoted in that."""

        @calls_model
        def called(*args: Any, **kwargs: Any) -> list[Tensor]:
            try:
                call(*args, **kwargs)
            except NEEDS_NUMBERS:
                raise
            except Exception as error:
                if not self.has_failed:
                    raise
                self._error = error.with_traceback(None)
                error.__context__ = error.__cause__ = None
                quoted, self._quoted = self._quoted, []
                return quoted
            raise UnsupportedError(
                "a check on values does not hold, and the model goes on otherwise, which is not recorded"
            )

        return called

    def quote(self, function: Callable[..., Any], x: Tensor, *rest: Any) -> Any:
        """A mark in place of the text of a tensor in an error."""
        place = len(self._quoted)
        self._quoted.append(torch.ops.aten.alias.default(x))
        if function is Tensor.item:
            return _Number(lambda spec: self._mark(lambda wholes: format(wholes[place].item(), spec)))
        return self._mark(lambda wholes: function(wholes[place], *rest))

    def _mark(self, text: Callable[[Sequence[Tensor]], str]) -> str:
        self._texts.append(text)
        return f"\x00{len(self._texts) - 1}\x00"

    def error(self, quoted: Sequence[Tensor]) -> BaseException:
        """The model's error, with the numbers of the tensors quoted in it."""
        assert self._error is not None

        def filled(part: object) -> object:
            if not isinstance(part, str):
                return part
            part = part.replace(TracedTensor.__name__, Tensor.__name__)
            return MARK.sub(lambda mark: self._texts[int(mark[1])](quoted), part)

        self._error.args = tuple(map(filled, self._error.args))
        return self._error


class _Number(float):
    """A number in the text of an error, not known yet."""

    mark: Callable[[str], str]

    def __new__(cls, mark: Callable[[str], str]) -> _Number:
        made = super().__new__(cls, "nan")
        made.mark = mark
        return made

    def __format__(self, spec: str) -> str:
        return self.mark(spec)

    def __repr__(self) -> str:
        return self.mark("")


def _made_by(x: Tensor) -> str:
    """The name of the operator that has made a tensor; none of an input."""
    op = node_of(x).target
    return name_of(op) if isinstance(op, OpOverload) else ""


def _condition(function: Callable[..., Any], args: Sequence[Any], given: dict[str, Any]) -> Tensor:
    """The tensor that is true if the function's answer is."""
    if function in ASKS:
        x: Tensor = args[0]
        return x.reshape(()) if x.dim() else x
    if function in COMPARES[:2]:
        return torch.all(torch.eq(*args, **given))
    return torch.all(torch.isclose(*args, **given))
