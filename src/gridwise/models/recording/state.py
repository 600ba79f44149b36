"""What modules hold: their tensors by name, and snapshots of everything else, to be compared and restored.

A snapshot of a module is a copy of its `__dict__`, of the lists, dicts, sets and arrays in it, of objects of the user's
own classes that it refers to, and of plain values that its class has or that its methods read from global variables.
Comparing it with the present state is one comparison of dicts, which stops at identical objects and is cheap enough for
every call.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

INNER = ("_parameters", "_buffers", "_modules")
"""Where torch keeps a module's parameters, buffers and submodules; the rest of its `__dict__` is plain attributes."""


@dataclass
class Holding:
    """A tensor that modules hold, under one name or several."""

    name: str
    kind: Literal["parameter", "buffer"]
    value: Tensor
    shape: tuple[int, ...]
    """The global shape; a worker outside the grid holds an empty tensor."""
    places: list[tuple[dict[str, Any], str]] = field(default_factory=list)


def modules_of(roots: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """All modules below `roots`, each once, by their dotted names."""
    found: dict[str, torch.nn.Module] = {}
    visited: set[torch.nn.Module] = set()
    for prefix, root in roots.items():
        found.update(root.named_modules(visited, prefix))
    return found


def tensors_of(modules: Mapping[str, torch.nn.Module]) -> list[Holding]:
    """The tensors that modules hold, each once: parameters, buffers, and plain attributes."""
    found: dict[int, Holding] = {}
    for path, module in modules.items():
        for held in (module._parameters, module._buffers, module.__dict__):
            for key, value in held.items():
                if isinstance(value, Tensor):
                    is_leaf = isinstance(value, torch.nn.Parameter)
                    name = f"{path}.{key}" if path else key
                    spread = getattr(module, "_spreads", {}).get(key)
                    shape = tuple(value.shape) if spread is None else spread.shape
                    new = Holding(name, "parameter" if is_leaf else "buffer", value, shape)
                    found.setdefault(id(value), new).places.append((held, key))
    return list(found.values())


@dataclass(frozen=True)
class Change:
    """An attribute of a module, or of an object that it holds, that has changed."""

    path: str
    name: str
    before: Any
    after: Any
    """The value itself."""
    contents: Any
    """A copy of it, as long as it may yet change; see `refilled`."""


class Snapshot:
    """The state of modules at one moment, apart from the values of their tensors."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.modules = dict(modules)
        found = {
            id(module.__dict__): (path or type(module).__name__, module.__dict__) for path, module in modules.items()
        }
        for path, attributes in tuple(found.values()):
            for key, value in attributes.items():
                _find_objects(f"{path}.{key}", value, found)
        self._names = [path for path, _ in found.values()]
        self._was = [(now, _copied(now)) for _, now in found.values()]
        self._now = [now for now, _ in self._was]
        self._quickly = [{key: _comparable(value) for key, value in was.items()} for _, was in self._was]
        self._objects = [dict(now) for _, now in found.values()]
        classes = list(_own_classes(modules.values()))
        self._classes = {kind: _plain_values(kind) for kind in classes}
        self._globals = [each for kind in classes for each in _globals_of(kind)]

    def holds(self) -> bool:
        """Whether nothing has changed since the snapshot."""
        try:
            return (
                self._now == self._quickly
                and all(_plain_values(kind) == was for kind, was in self._classes.items())
                and all(_same(was, names.get(name)) for names, name, was in self._globals)
            )
        except (RuntimeError, ValueError, TypeError):  # another tensor or array, compared element by element
            return False

    def changes(self) -> Iterator[Change]:
        """What has changed since the snapshot."""
        for path, (now, was) in zip(self._names, self._was, strict=True):
            for key in {**was, **now}:
                if key in INNER and isinstance(was.get(key), dict):
                    inner = {**was[key], **now[key]}
                    pairs = [(name, was[key].get(name, ABSENT), now[key].get(name, ABSENT)) for name in inner]
                else:
                    pairs = [(key, was.get(key, ABSENT), now.get(key, ABSENT))]
                for name, before, after in pairs:
                    if not _same(before, after):
                        yield Change(path, name, before, after, _copied(after))

    def restore(self) -> None:
        """Restore everything: the same objects, with their earlier contents."""
        for (now, was), objects in zip(self._was, self._objects, strict=True):
            now.clear()
            now.update({key: refilled(value, was[key]) for key, value in objects.items()})


FOREIGN = ("torch", "gridwise", "builtins", "collections", "functools", "numpy", "weakref")
"""Packages whose functions and objects are not inspected."""


def is_foreign(value: type | FunctionType) -> bool:
    """Whether a class or function is of one of these packages."""
    return (value.__module__ or "").partition(".")[0] in FOREIGN


def is_own(value: object) -> bool:
    """Whether a value is an instance of a user's class, with attributes that the model's code may read."""
    kind = type(value)
    if isinstance(value, Tensor | torch.nn.Module | type) or not hasattr(value, "__dict__"):
        return False
    return not is_foreign(kind)


def _find_objects(path: str, value: object, found: dict[int, tuple[str, dict[str, Any]]]) -> None:
    """Add the attribute dicts of users' objects in a value (a configuration, say), and of the objects in these."""
    if isinstance(value, list | tuple):
        for i, part in enumerate(value):
            _find_objects(f"{path}[{i}]", part, found)
    elif isinstance(value, dict):
        for key, part in value.items():
            _find_objects(f"{path}[{key!r}]", part, found)
    elif is_own(value) and id(vars(value)) not in found:
        found[id(vars(value))] = path, vars(value)
        for key, part in vars(value).items():
            _find_objects(f"{path}.{key}", part, found)


PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))


def _own_classes(modules: Iterable[torch.nn.Module]) -> Iterator[type]:
    """The classes of modules, and their bases, other than torch's."""
    kinds = {kind for module in modules for kind in type(module).__mro__}
    return (kind for kind in kinds if not is_foreign(kind))


def _plain_values(kind: type) -> dict[str, Any]:
    """The plain attributes of a class (numbers, strings, tuples), which its code may read."""
    return {key: value for key, value in vars(kind).items() if isinstance(value, PLAIN)}


def _globals_of(kind: type) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The plain global variables that the methods of a class name: namespace, name and value."""
    for function in vars(kind).values():
        if isinstance(function, FunctionType):
            names = function.__globals__
            yield from (
                (names, name, names[name])
                for name in function.__code__.co_names
                if isinstance(names.get(name, ...), PLAIN)
            )


class _Numbers:
    """A copy of an array, which equals the original as long as that has the same elements."""

    __array_ufunc__ = None  # otherwise an array on the other side would compare element by element

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.copy()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, np.ndarray) and np.array_equal(
            self.array, other, equal_nan=self.array.dtype.kind in "fc"
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.array)


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


def _copied(value: Any) -> Any:
    """A copy of a container or array, to be compared with it later; any other value unchanged."""
    return _Numbers(value) if isinstance(value, np.ndarray) else _mapped(_copied, value)


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


def _comparable(value: object) -> object:
    """An equal value that is faster to compare: each module has ten ordered dicts, which compare their order too."""
    return {} if type(value) is OrderedDict and not value else value


def refilled(value: object, was: Any) -> object:
    """A container, refilled with the contents of its copy `was`; any other value unchanged."""
    if not isinstance(value, np.ndarray | list | tuple | dict | set | deque) or _same(was, value):
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


def _same(one: Any, other: Any) -> bool:
    if one is other or isinstance(one, _Numbers):
        return one is other or one == other
    if isinstance(one, Tensor) or isinstance(other, Tensor) or type(one) is not type(other):
        return False
    if isinstance(one, weakref.ref):  # torch's RNNs keep weak references to notice that their weights were replaced
        return True
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other)
    except (RuntimeError, ValueError, TypeError):
        return False


def swap(holdings: Sequence[Holding], values: Sequence[Tensor]) -> None:
    """Replace the tensors of modules; a `Snapshot` restores them."""
    for holding, value in zip(holdings, values, strict=True):
        for held, key in holding.places:
            held[key] = value
