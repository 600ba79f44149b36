"""Where in the user's code something happens, and whose error an error is: the model's, or one of Gridwise itself."""

from __future__ import annotations

import linecache
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

from ...errors import GridwiseError, InternalError
from ...version import __version__

_TORCH = os.path.dirname(torch.__file__)
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SERVING = {"torch", "numpy", "gridwise", *sys.stdlib_module_names}
"""Packages that raise errors on behalf of their callers."""

Called = TypeVar("Called", bound=Callable[..., Any])
_calling_models: set[CodeType] = set()


def calls_model(function: Called) -> Called:
    """Mark a function that hands on a call of the model: what this call raises is not an error of Gridwise."""
    _calling_models.add(function.__code__)
    return function


def current_line() -> str:
    """The innermost line of the user's code on the stack."""
    return _first_own(traceback.walk_stack(sys._getframe(1)))


def line_of(error: BaseException) -> str:
    """The innermost line of the user's code in the traceback of an error."""
    return _first_own(reversed(list(traceback.walk_tb(error.__traceback__))))


def _first_own(frames: Iterable[tuple[FrameType, int]]) -> str:
    for frame, number in frames:
        code = frame.f_code
        if not code.co_filename.startswith((_TORCH, _HERE, "<")):
            line = linecache.getline(code.co_filename, number).strip()
            return f"{os.path.basename(code.co_filename)}:{number}, in {code.co_name}:  {line}"
    return ""


def internal_error(says: str, error: Exception) -> InternalError | None:
    """The error to raise in place of one that this package caused while it recorded a model; None if it did not."""
    if isinstance(error, GridwiseError):
        return None
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = str(frame.f_globals.get("__name__"))
        ours = name.startswith("gridwise.models.")
        if frame.f_code in _calling_models or not (ours or name.partition(".")[0] in _SERVING):
            return None
        if ours:
            return InternalError(
                f"{says}: an error inside Gridwise while the model was recorded, {type(error).__name__}: {error}",
                [
                    f"in {name.removeprefix('gridwise.')}, line {number}, {frame.f_code.co_name}",
                    f"gridwise {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
                ],
                "`gridwise doctor` shows whether this version of torch works. If it does, please report this with its output.",
            )
    return None


@contextmanager
def internal_errors_named(says: str) -> Iterator[None]:
    """Raise what this package causes in the body as an `InternalError`, and anything else as it is."""
    try:
        yield
    except Exception as error:
        internal = internal_error(says, error)
        if internal is None:
            raise
        raise internal from error
