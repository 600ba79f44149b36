"""What a value was: the contents of containers, arrays and users' objects, copied, compared later, and restored.

Values are the same to a model if they are equal, of one type, and their parts are: 2 is not 2.0, and 0.0 is not -0.0. A
tensor is the same only as itself.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOREIGN = ("torch", "gridwise", "builtins", "collections", "functools", "numpy", "weakref")
"""Packages whose functions and objects are not inspected."""
PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))
CONTAINERS = (list, dict, set, deque)
"""Containers whose contents may change; tuples may contain such."""


def is_foreign(value: type | FunctionType) -> bool:
    """Whether a class or function is of one of these packages."""
    return (value.__module__ or "").partition(".")[0] in FOREIGN


def is_own(value: object) -> bool:
    """Whether a value is an instance of a user's class, with attributes that the model's code may read."""
    kind = type(value)
    if isinstance(value, Tensor | torch.nn.Module | type) or not hasattr(value, "__dict__"):
        return False
    return not is_foreign(kind)


def find_objects(path: str, value: object, found: dict[int, tuple[str, dict[str, Any]]]) -> None:
    """Add the attribute dicts of users' objects in a value (a configuration, say), and of the objects in these."""
    if isinstance(value, list | tuple):
        for i, part in enumerate(value):
            find_objects(f"{path}[{i}]", part, found)
    elif isinstance(value, dict):
        for key, part in value.items():
            find_objects(f"{path}[{key!r}]", part, found)
    elif is_own(value) and id(vars(value)) not in found:
        found[id(vars(value))] = path, vars(value)
        for key, part in vars(value).items():
            find_objects(f"{path}.{key}", part, found)


def filled_containers(values: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """The items of the containers in these values that are not empty, each as a view that follows its changes."""
    for value in values:
        if isinstance(value, tuple):
            yield from filled_containers(value)
        elif isinstance(value, CONTAINERS) and value:
            items = value.values() if isinstance(value, dict) else value
            yield items
            yield from filled_containers(items)


class _Numbers:
    """A copy of an array, which equals the original as long as that has the same elements."""

    __array_ufunc__ = None  # otherwise an array on the other side would compare element by element

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.copy()

    def __eq__(self, other: object) -> bool:
        now = other.array if isinstance(other, _Numbers) else other
        if not isinstance(now, np.ndarray) or now.dtype != self.array.dtype:
            return False
        return np.array_equal(self.array, now, equal_nan=self.array.dtype.kind in "fc")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.array)


def copied(value: Any) -> Any:
    """A copy of a container or array, to be compared with it later; any other value unchanged."""
    return _Numbers(value) if isinstance(value, np.ndarray) else _mapped(copied, value)


def copied_whole(value: Any) -> Any:
    """A copy of a value, and of the attributes of users' objects in it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    objects: dict[int, tuple[str, dict[str, Any]]] = {}
    find_objects("", value, objects)
    return copied(value), [copied(attributes) for _, attributes in objects.values()]


def _uncopied(was: Any) -> Any:
    """The contents of a copy, in new containers of the original types."""
    return was.array.copy() if isinstance(was, _Numbers) else _mapped(_uncopied, was)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A new container of the same type with `change` of each item; a tuple only if an item changes."""
    kind = type(value)
    if kind in (list, set):
        return kind(map(change, value))
    if kind is deque:
        return deque(map(change, value), value.maxlen)
    if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
        copy = value.copy()
        copy.update({key: change(part) for key, part in value.items()})
        return copy
    if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_make")):
        parts = [change(part) for part in value]
        if any(one is not other for one, other in zip(parts, value, strict=True)):
            return kind(parts) if kind is tuple else kind._make(parts)
    return value


def comparable(value: object) -> object:
    """An equal value that is faster to compare: each module has ten ordered dicts, which compare their order too."""
    return {} if type(value) is OrderedDict and not value else value


def refilled(value: object, was: Any) -> object:
    """A container, refilled with the contents of its copy `was`; any other value unchanged."""
    if not isinstance(value, np.ndarray | list | tuple | dict | set | deque) or same(was, value):
        return value
    if isinstance(value, tuple):
        for part, before in zip(value, was, strict=True):
            refilled(part, before)
        return value
    contents = _uncopied(was)
    if isinstance(value, np.ndarray):
        value[...] = contents
    elif isinstance(value, list):
        value[:] = contents
    elif type(value) is type(was):
        value.clear()
        value.extend(contents) if isinstance(value, deque) else value.update(contents)
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to a model; either may be a copy."""
    if one is other:
        return True
    if isinstance(one, _Numbers):
        return one == other
    if isinstance(one, Tensor) or type(one) is not type(other):
        return isinstance(other, _Numbers) and other == one
    if isinstance(one, weakref.ref):  # torch's RNNs keep weak references to notice that their weights were replaced
        return True
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (one != one and other != other)
    try:
        return bool(one == other)
    except (RuntimeError, ValueError, TypeError):
        return False
