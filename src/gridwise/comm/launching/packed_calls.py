"""Values and function calls as bytes for other processes; errors name what cannot be pickled or is not callable."""

from __future__ import annotations

import functools
import inspect
import io
import operator
import sys
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


class _Pickler(cloudpickle.Pickler):
    """Cloudpickle, which also sends cached functions and properties that only this process can name: with an empty cache."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _CACHED) and not _can_be_imported(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if type(obj) is functools.cached_property:  # before Python 3.12 it holds a lock
            return _cached_property, (obj.func, obj.attrname)
        return super().reducer_override(obj)


_CACHED = type(functools.cache(lambda: None))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[..., Any], name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    if name is not None:
        made.__set_name__(object, name)  # a class that is sent by value is made without it
    return made


def _can_be_imported(obj: Any) -> bool:
    """Whether another process finds this very object by its module and name."""
    if obj.__module__ == "__main__" or obj.__module__ in cloudpickle.list_registry_pickle_by_value():
        return False
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def packed(value: object) -> bytes:
    """A value, pickled for another process of this program; `cloudpickle.loads` unpacks it."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def packed_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The call ``fn(*args, **kwargs)``, pickled."""
    if not callable(fn):
        raise PartitionError(
            f"`fn` (={_short(fn)}) must be a function that every worker calls; it is a {type(fn).__name__}.",
            fix="name the function without calling it, and its arguments after it: launch(train, 0.1, workers=4), not "
            "launch(train(0.1), workers=4).",
        )
    try:
        return packed((fn, args, kwargs))
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
        packed(value)
    except Exception:
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
