"""Writes and views in a recording: which tensors share memory, and which values are read after a write.

In the recorded model a view shares the memory of its base. On blocks it does so as long as nothing is moved, so it must be
known where that matters:

    keeps_alias    views that must share memory on every worker: one side is written to, and the other is read later
    in_place       writes that other tensors observe; all others may as well make a new tensor
    isolates       operators whose result has memory of its own in the model, and that one side of is written to later

Nodes are the same tensor if one is the other, changed in place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from .recording.recording import ValueSource, memory_of, tensors_in, written_by


class Aliases:
    """What shares memory in a graph."""

    def __init__(self, graph: torch.fx.Graph, sources: Mapping[str, ValueSource]) -> None:
        self.keeps_alias: set[Node] = set()
        self.in_place: set[Node] = set()
        self.isolates: set[Node] = set()
        self._same: dict[Node, Node] = {}
        self._parent: dict[Node, tuple[Node, Node]] = {}
        """For a tensor that is a view: of which, and by which node."""
        self._made: dict[Node, int] = {}
        self._read: dict[Node, float] = {}
        writes: list[tuple[int, Node, Node]] = []
        for time, node in enumerate(graph.nodes):
            self._made[node] = time
            for each in node.all_input_nodes:
                base = self.same(each)
                self._read[base] = max(self._read.get(base, 0.0), math.inf if node.op == "output" else time)
            self._find_source(node)
            writes += [(time, node, self.same(each)) for each in written_by(node)]
        for _, _, tensor in writes:
            if tensor.op == "placeholder" and sources[tensor.name].kind != "constant":
                self._read[tensor] = math.inf  # the user sees it
        self.memories: dict[int, list[Node]] = {}
        for node in self._made:
            memory = memory_of(node)
            if memory is not None and self.same(node) is node:
                self.memories.setdefault(memory, []).append(node)
        for time, node, tensor in writes:
            self._follow(time, node, tensor)
        self._find_isolated(writes)

    def same(self, node: Node) -> Node:
        """The first node that is this tensor."""
        while node in self._same:
            node = self._same[node]
        return node

    def _find_source(self, node: Node) -> None:
        """Note which tensor a node shares its memory with."""
        memory = memory_of(node)
        if memory is None or node.op != "call_function":
            return
        by = node
        while by.target is operator.getitem:
            (by,) = by.all_input_nodes
        for each in by.all_input_nodes:
            if memory_of(each) == memory:
                base = self.same(each)
                if each in written_by(by):
                    self._same[node] = base
                else:
                    self._parent[node] = base, by
                return

    def _path(self, node: Node) -> list[tuple[Node, Node]]:
        """From a tensor to its base: each tensor on the way, with the node that made the view."""
        found = []
        while node in self._parent:
            base, by = self._parent[node]
            found.append((node, by))
            node = base
        return found

    def _follow(self, time: int, node: Node, tensor: Node) -> None:
        memory = memory_of(tensor)
        own = self._path(tensor)
        for other in self.memories.get(memory or 0, []):
            if other is tensor and other.op == "placeholder" and self._read.get(other, 0) == math.inf:
                self.in_place.add(node)
            if other is tensor or self._made[other] > time or self._read.get(other, 0.0) <= time:
                continue
            self.in_place.add(node)
            theirs = self._path(other)
            common = {view for view, _ in own} & {view for view, _ in theirs}
            self.keeps_alias |= {by for view, by in (*own, *theirs) if view not in common}

    def _find_isolated(self, writes: list[tuple[int, Node, Node]]) -> None:
        last = {memory_of(tensor): time for time, _, tensor in writes}  # in their order
        for node, time in self._made.items():
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            made, given = _memories([node]), _memories(node.all_input_nodes)
            if not made & given and any(last.get(memory, -1) > time for memory in made | given):
                self.isolates.add(node)


def _memories(nodes: Iterable[Node]) -> set[int]:
    return {x.untyped_storage()._cdata for node in nodes for x in tensors_in(node.meta.get("val"))}


def isolated(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, so that its result shares no memory with what it is given."""

    def own(x: object, memories: set[int]) -> Any:
        if isinstance(x, Tensor):
            return x.clone() if x.untyped_storage()._cdata in memories else x
        return type(x)(own(part, memories) for part in x) if isinstance(x, list | tuple) else x

    def apart(*given: object) -> Any:
        return own(run(*given), {x.untyped_storage()._cdata for x in given if isinstance(x, Tensor)})

    return apart
