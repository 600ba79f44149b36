"""What modules hold: their tensors by name, and snapshots of everything else, to be compared and restored.

A snapshot of a module is a copy of its `__dict__`, of the lists, dicts, sets and arrays in it, of objects of the user's
own classes that it refers to, and of plain values that its class has or that its methods read from global variables.
Comparing it with the present state is one comparison of dicts, which stops at identical objects and is cheap enough for
every call.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor

from .contents import PLAIN, comparable, copied, filled_containers, find_objects, is_foreign, refilled, same

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
                    sharding = getattr(module, "_shardings", {}).get(key)
                    shape = tuple(value.shape) if sharding is None else sharding.shape
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
    held: dict[str, Any]
    """The dict that holds it."""

    def apply(self) -> None:
        """Make the change again, after it was restored."""
        if self.after is ABSENT:
            self.held.pop(self.name, None)
        else:
            self.held[self.name] = refilled(self.after, self.contents)


class Snapshot:
    """The state of modules at one moment, apart from the values of their tensors."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.modules = dict(modules)
        found = {
            id(module.__dict__): (path or type(module).__name__, module.__dict__) for path, module in modules.items()
        }
        for path, attributes in tuple(found.values()):
            for key, value in attributes.items():
                find_objects(f"{path}.{key}", value, found)
        self._names = [path for path, _ in found.values()]
        self._was = [(now, copied(now)) for _, now in found.values()]
        self._now = [now for now, _ in self._was]
        self._quickly = [{key: comparable(value) for key, value in was.items()} for _, was in self._was]
        self._objects = [dict(now) for _, now in found.values()]
        classes = list(_own_classes(modules.values()))
        self._classes = {kind: _plain_values(kind) for kind in classes}
        self._globals = [each for kind in classes for each in _globals_of(kind)]
        self._note_items()

    def holds(self) -> bool:
        """Whether nothing has changed since the snapshot."""
        try:
            return (
                self._now == self._quickly
                and (all(map(operator.is_, chain.from_iterable(self._views), self._items)) or self._are_same())
                and all(same(_plain_values(kind), was) for kind, was in self._classes.items())
                and all(same(was, names.get(name)) for names, name, was in self._globals)
            )
        except (RuntimeError, ValueError, TypeError):  # another tensor or array, compared element by element
            return False

    def _are_same(self) -> bool:
        """Whether items that compare as equal are the same to a model."""
        found = all(same(was, now) for now, was in self._was)
        if found:
            self._note_items()
        return found

    def _note_items(self) -> None:
        """Note the items of all containers, to be compared by identity at the speed of C."""
        own = [now.values() for now in self._now]
        self._views = [*own, *filled_containers(chain.from_iterable(own))]
        self._items = [*chain.from_iterable(self._views)]

    def changes(self) -> Iterator[Change]:
        """What has changed since the snapshot."""
        for path, (now, was) in zip(self._names, self._was, strict=True):
            for key in {**was, **now}:
                if key in INNER and isinstance(was.get(key), dict):
                    inner = {**was[key], **now[key]}
                    held, names, earlier = now[key], list(inner), was[key]
                else:
                    held, names, earlier = now, [key], was
                for name in names:
                    before, after = earlier.get(name, ABSENT), held.get(name, ABSENT)
                    if not same(before, after):
                        yield Change(path, name, before, after, copied(after), held)

    def restore(self) -> None:
        """Restore everything: the same objects, with their earlier contents."""
        for (now, was), objects in zip(self._was, self._objects, strict=True):
            now.clear()
            now.update({key: refilled(value, was[key]) for key, value in objects.items()})


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


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


def swap(holdings: Sequence[Holding], values: Sequence[Tensor]) -> None:
    """Replace the tensors of modules; a `Snapshot` restores them."""
    for holding, value in zip(holdings, values, strict=True):
        for held, key in holding.places:
            held[key] = value
