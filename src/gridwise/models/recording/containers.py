"""Any nesting of tensors, flattened into a list and rebuilt.

Containers are lists, tuples, named tuples, dicts and their subclasses, dataclasses, and other objects with tensors as
attributes (transformers' ModelOutput is both a dict and a dataclass). Values without tensors are kept as they are.
Users' classes need not be registered with torch, and are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .contents import copied_whole, same

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Leaf:
    """A tensor; `place` is its position in the flat list."""

    place: int


@dataclass(frozen=True, eq=False)
class Constant:
    """Anything that neither is nor contains a tensor."""

    value: Any
    was: Any = field(init=False, repr=False)
    """A copy of what may change in it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "was", copied_whole(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and same(self.was, other.was)

    def __hash__(self) -> int:
        return hash(type(self.value))


@dataclass(frozen=True)
class Branch:
    """A container: its class, its items by position or key, and its attributes."""

    kind: type
    keys: tuple[Any, ...] | None
    """The keys of a dict, else None."""
    parts: tuple[Tree, ...]
    attributes: tuple[tuple[str, Tree], ...] = ()

    @property
    def inside(self) -> tuple[Tree, ...]:
        """All items and attributes."""
        return (*self.parts, *(part for _, part in self.attributes))


Tree = Leaf | Constant | Branch


def flatten(
    value: object, is_leaf: Callable[[Any], bool] = lambda value: isinstance(value, Tensor), once: bool = True
) -> tuple[list[Any], Tree]:
    """The tensors in `value`, each once (or as often as it occurs), and the tree of containers around them."""
    found = _Leaves(is_leaf, once)
    tree = found.visit(value, ())
    return found.leaves, tree


class _Leaves:
    """The leaves found so far in a value.

    A class, because a recursive closure would keep them, and with them memory of the device, until the next garbage
    collection.
    """

    def __init__(self, is_leaf: Callable[[Any], bool], once: bool) -> None:
        self.is_leaf, self.once = is_leaf, once
        self.leaves: list[Any] = []
        self._places: dict[int, int] = {}

    def visit(self, value: object, around: tuple[int, ...]) -> Tree:
        leaves, places = self.leaves, self._places
        if self.is_leaf(value):
            if id(value) not in places or not self.once:
                places[id(value)] = len(leaves)
                leaves.append(value)
            return Leaf(places[id(value)])
        if isinstance(value, str | int | float | None | torch.nn.Module | type) or id(value) in around:
            return Constant(value)
        kept, around = len(leaves), (*around, id(value))
        if isinstance(value, dict):
            parts = tuple([self.visit(part, around) for part in value.values()])
            tree = Branch(type(value), tuple(value), parts, self._visit_attributes(value, around))
        elif isinstance(value, list | tuple):
            parts = tuple([self.visit(part, around) for part in value])
            tree = Branch(type(value), None, parts, self._visit_attributes(value, around))
        elif is_dataclass(value) or any(self.is_leaf(part) for _, part in _attributes(value)):
            tree = Branch(type(value), None, (), self._visit_attributes(value, around))
        else:
            return Constant(value)
        return tree if len(leaves) > kept or _has_leaf(tree) else Constant(value)

    def _visit_attributes(self, value: object, around: tuple[int, ...]) -> tuple[tuple[str, Tree], ...]:
        return tuple([(name, self.visit(part, around)) for name, part in _attributes(value)])


def _has_leaf(tree: Tree) -> bool:
    """Whether a tree contains a tensor, new or already found elsewhere."""
    return any(map(_has_leaf, tree.inside)) if isinstance(tree, Branch) else isinstance(tree, Leaf)


def constants_in(tree: Tree) -> list[Any]:
    """All values other than tensors."""
    if isinstance(tree, Branch):
        return [value for part in tree.inside for value in constants_in(part)]
    return [tree.value] if isinstance(tree, Constant) else []


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """The containers of `tree` with these tensors in them."""
    if isinstance(tree, Leaf):
        return leaves[tree.place]
    if isinstance(tree, Constant):
        return tree.value
    kind, parts = tree.kind, [unflatten(part, leaves) for part in tree.parts]
    value: Any
    if kind in (list, tuple):
        return kind(parts)
    if issubclass(kind, tuple):
        value = kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    else:
        value = kind.__new__(kind)
        if issubclass(kind, dict):
            for key, part in zip(tree.keys or (), parts, strict=True):
                dict.__setitem__(value, key, part) if kind is dict else value.__setitem__(key, part)
        elif issubclass(kind, list):
            value.extend(parts)
    for name, part in tree.attributes:
        object.__setattr__(value, name, unflatten(part, leaves))
    return value


def without_values(tree: Tree) -> Tree:
    """The same containers, with None in place of everything but tensors."""
    if isinstance(tree, Branch):
        attributes = tuple([(name, without_values(part)) for name, part in tree.attributes])
        return replace(tree, parts=tuple(map(without_values, tree.parts)), attributes=attributes)
    return tree if isinstance(tree, Leaf) else Constant(None)


def described(tree: Tree) -> str:
    """A description that is the same on all workers with the same containers and values."""
    if isinstance(tree, Leaf):
        return f"tensor {tree.place}"
    if isinstance(tree, Constant):
        return ADDRESS.sub("", f"{type(tree.value).__qualname__} {tree.value!r}")
    inside = ", ".join(map(described, tree.parts))
    named = ", ".join(f"{name}={described(part)}" for name, part in tree.attributes)
    return f"{tree.kind.__qualname__}{list(tree.keys) if tree.keys is not None else ''}({inside}; {named})"
