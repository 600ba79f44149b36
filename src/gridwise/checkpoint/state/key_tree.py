"""The flat keys of a checkpoint as the tree that they were made from.

A node is a leaf (a tensor or a value), a dict of named nodes, or a list or tuple. A list that holds tensors has, besides
its items, an entry of its own among the values, {"$list": 3} or {"$items": 3}, which gives its length and kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...errors import CheckpointDamaged
from ..format.manifest import Manifest
from ..format.values import DEEPEST, LISTS, is_length


@dataclass(slots=True)
class KeyNode:
    """A node of the tree. `kind` is None for a leaf, else dict, list or tuple; `children` are by part of the key."""

    key: str
    kind: type | None
    children: dict[str, KeyNode] = field(default_factory=dict)

    def items(self) -> Iterator[KeyNode]:
        """The items of a list or tuple, in order."""
        return (self.children[f"#{place}"] for place in range(len(self.children)))


def tree_of(manifest: Manifest) -> KeyNode:
    """The root of the tree: a dict."""
    root = KeyNode("", dict)
    for key in manifest.tensors:
        _add(root, key, None)
    lengths: dict[str, int] = {}
    for key, value in manifest.values.items():
        kind = None
        if is_length(value):
            ((name, lengths[key]),) = value.items()
            kind = LISTS[name]
        _add(root, key, kind)
    for key, length in lengths.items():
        node = find(root, key)
        assert node is not None
        if type(length) is not int or node.children.keys() != {f"#{place}" for place in range(len(node.children))}:
            raise CheckpointDamaged(f"{key!r} is a list whose items are not numbered one after the other.")
        if len(node.children) != length:
            raise CheckpointDamaged(f"{key!r} is a list of {length} items, {len(node.children)} are there.")
    return root


def find(root: KeyNode, key: str) -> KeyNode | None:
    """The node at a key, or None."""
    at: KeyNode | None = root
    for name in key.split("/") if key else ():
        at = at.children.get(name) if at is not None else None
    return at


def _add(root: KeyNode, key: str, kind: type | None) -> None:
    *way, last = key.split("/")
    if len(way) > 2 * DEEPEST:
        raise CheckpointDamaged(f"{key[:100]!r}... is nested deeper than {DEEPEST} levels.")
    at, depth = root, 0
    for depth, name in enumerate(way, 1):
        at = at.children.setdefault(name, KeyNode("", dict))
        if at.kind is None:
            raise CheckpointDamaged(f"{key!r} lies below {'/'.join(way[:depth])!r}, which is no dict.")
        at.key = at.key or "/".join(way[:depth])
    known = at.children.get(last)
    if known is None:
        at.children[last] = KeyNode(key, kind)
    elif kind is not None and known.kind is dict:
        known.kind = kind
    else:
        raise CheckpointDamaged(f"{key!r} stands for two things.")
