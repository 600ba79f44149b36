"""Tensors that share memory, as values that never change: what a write means for the views of a tensor, and for its base.

write to a base     its views are made again from it, when they are read next
write to a view     the base becomes what it was, with the written part replaced; and so on, up to the first base
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from ..models.recording.recording import memory_of, written_by
from ..torch_internals.operators import name_of, schema_of
from .graph import GlobalValue

aten = torch.ops.aten
Call = Callable[..., Any]
"""``call(op, *args)``: the value of an ATen operator."""
RESHAPES = frozenset(
    "view reshape flatten unflatten _unsafe_view view_as reshape_as ravel unsqueeze squeeze _reshape_alias".split()  # noqa: SIM905
)
SAME = frozenset("detach alias contiguous to clone _to_copy lift_fresh positive type_as".split())  # noqa: SIM905


class CannotPutBack(Exception):
    """Raised for a view whose base cannot be told what was written to it."""


class Tensors:
    """The present value of each node of a graph."""

    def __init__(self, call: Call, again: Callable[[Node, GlobalValue], GlobalValue]) -> None:
        self.call = call
        self.again = again
        """Makes a view again, from the new value of its base."""
        self._values: dict[Node, GlobalValue] = {}
        self._same: dict[Node, Node] = {}
        """Nodes that are the very tensor of another: the results of writes."""
        self._base: dict[Node, Node] = {}
        self._seen: dict[Node, int] = {}
        """The number of writes to the memory of a tensor when its value was made."""
        self._writes: dict[int, int] = {}
        self._written: dict[Node, None] = {}

    def bind(self, node: Node, value: GlobalValue) -> None:
        """Note the value of a node that has just been made."""
        base = _base_of(node)
        if base is not None:
            base = self.first(base)
            if any(base is self.first(each) for each in _written(node)):
                self._same[node] = base
                return
            self._base[node] = base
        self._values[node] = value
        self._seen[node] = self._count(node)

    def first(self, node: Node) -> Node:
        while node in self._same:
            node = self._same[node]
        return node

    def read(self, node: Node) -> GlobalValue:
        node = self.first(node)
        count = self._count(node)
        if self._seen[node] != count and node in self._base:
            self._values[node] = self.again(node, self.read(self._base[node]))
            self._seen[node] = count
        return self._values[node]

    def write(self, node: Node, value: GlobalValue) -> None:
        """Give a tensor a new value."""
        path, new = self._path(node), value
        values = [new]
        for view, base in pairwise(path):
            new = put_back(self.call, view, self.read(base), new)
            values.append(new)
        memory = memory_of(path[0])
        assert memory is not None
        self._writes[memory] = self._writes.get(memory, 0) + 1
        for each, now in zip(path, values, strict=True):
            self._values[each], self._seen[each] = now, self._writes[memory]
        self._written[path[-1]] = None

    def loses_gradient(self, node: Node, grad_enabled: bool) -> bool:
        """Whether torch would leave the gradient of a tensor as if nothing were written to it."""
        needs = [self.read(each).requires_grad for each in self._path(node)]
        return any(needs) and not (grad_enabled and needs[0])

    def _path(self, node: Node) -> list[Node]:
        """A tensor, the one that it is a view of, and so on."""
        path = [self.first(node)]
        while path[-1] in self._base:
            path.append(self._base[path[-1]])
        return path

    def rebind(self, node: Node, value: GlobalValue) -> None:
        """Let a node stand for another value with the same numbers."""
        self._values[self.first(node)] = value

    def replace(self, place: GlobalValue, value: GlobalValue) -> None:
        """Give the tensor whose value is `place`, a buffer, a new value."""
        node = next(node for node, held in self._values.items() if held is place)
        self.write(node, value)

    def written_placeholders(self) -> list[tuple[Node, GlobalValue]]:
        """The placeholders that have been written to, with their last values."""
        return [(node, self.read(node)) for node in self._written if node.op == "placeholder"]

    def _count(self, node: Node) -> int:
        memory = memory_of(node)
        return self._writes.get(memory, 0) if memory is not None else 0


def _by(node: Node) -> Node:
    """The node of the operator that made a tensor."""
    while node.target is operator.getitem:
        (node,) = node.all_input_nodes
    return node


def _written(node: Node) -> list[Node]:
    return written_by(_by(node))


def _base_of(node: Node) -> Node | None:
    """The tensor whose memory a node shares, among its arguments."""
    memory = memory_of(node)
    if memory is None or node.op != "call_function":
        return None
    return next((each for each in _by(node).all_input_nodes if memory_of(each) == memory), None)


def put_back(call: Call, view: Node, base: GlobalValue, value: GlobalValue) -> GlobalValue:
    """The base of a view, once the view has become `value`."""
    by = _by(view)
    kind = name_of(by.target).partition("::")[2]
    given = _arguments(by)
    dim = given.get("dim")
    if kind in RESHAPES:
        return call(aten.reshape.default, value, list(base.shape))
    if kind in SAME and value.shape == base.shape:
        return value
    if kind in ("permute", "transpose", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "numpy_T", "mT"):
        order = _order_by_trying(by, base)
        back = sorted(range(len(order)), key=order.__getitem__)
        return call(aten.permute.default, value, back)
    if kind == "slice":
        return call(aten.slice_scatter.default, base, value, dim, given["start"], given["end"], given["step"])
    if kind == "narrow":
        start = given["start"] % max(1, base.shape[dim])  # type: ignore[index]
        return call(aten.slice_scatter.default, base, value, dim, start, start + given["length"], 1)
    if kind == "select":
        return call(aten.select_scatter.default, base, value, dim, given["index"])
    if kind in ("unbind", "split", "split_with_sizes", "chunk", "tensor_split") and view.target is operator.getitem:
        place = view.args[1]
        assert isinstance(place, int)
        if kind == "unbind":
            return call(aten.select_scatter.default, base, value, dim, place)
        parts = by.meta["val"]
        start = sum(part.shape[dim] for part in parts[:place])
        return call(aten.slice_scatter.default, base, value, dim, start, start + parts[place].shape[dim], 1)
    raise CannotPutBack(f"a view by {kind} is written to")


def _order_by_trying(by: Node, base: GlobalValue) -> list[int]:
    """The dims of the base in the order of the view, read off the strides of a tensor with different ones."""
    like = torch.empty(tuple(range(2, len(base.shape) + 2)), device="meta")
    strides = list(like.stride())
    view = by.target(like, *by.args[1:], **by.kwargs)  # type: ignore[operator]
    return [strides.index(n) for n in view.stride()]


def _arguments(node: Node) -> dict[str, Any]:
    schema = schema_of(node.target).arguments
    found = {a.name: a.default_value for a in schema}
    found.update(zip([a.name for a in schema], node.args, strict=False))
    found.update(node.kwargs)
    return found
