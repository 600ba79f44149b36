"""A function call as bytes, to be made by workers; errors name what cannot be pickled or is not callable."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import cloudpickle

from ...errors import PartitionError


def count_of(workers: SupportsIndex) -> int:
    """The requested number of workers, checked."""
    try:
        if isinstance(workers, bool):
            raise TypeError
        count = operator.index(workers)
    except TypeError:
        raise PartitionError(
            f"`workers` (={workers!r}) must be a whole number, 1 or more; it is a {type(workers).__name__}."
        ) from None
    if count < 1:
        raise PartitionError(f"`workers` (={workers}) must be 1 or more.")
    return count


def packed_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The call ``fn(*args, **kwargs)``, pickled."""
    if not callable(fn):
        raise PartitionError(
            f"`fn` (={_short(fn)}) must be a function that every worker calls; it is a {type(fn).__name__}.",
            fix="name the function without calling it, and its arguments after it: launch(train, 0.1, workers=4), not "
            "launch(train(0.1), workers=4).",
        )
    try:
        return cloudpickle.dumps((fn, args, kwargs))
    except Exception as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise PartitionError(
            f"{name} cannot be sent to the workers: {type(error).__name__}: {error}",
            [f"{what} is a {type(value).__name__}" for what, value in _parts(fn, args, kwargs) if not _travels(value)],
            "make what cannot be pickled (locks, open files, generators, partitions, layers on a grid) inside the "
            "function, on each worker.",
        ) from error


def _parts(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is pickled with a call: its arguments, and the outer variables that the function uses."""
    for i, value in enumerate(args):
        yield f"argument {i}", value
    for name, value in kwargs.items():
        yield f"argument `{name}`", value
    if inspect.isfunction(fn):
        used = inspect.getclosurevars(fn)
        for name, value in {**used.globals, **used.nonlocals}.items():
            yield f"variable `{name}`, which it uses,", value
        for value in fn.__defaults__ or ():
            yield "a default of an argument", value
    elif inspect.ismethod(fn):
        yield "the object whose method it is", fn.__self__


def _travels(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
