"""Writes and views in a recording: which tensors share memory, and which values are read after a write.

In the recorded model a view shares the memory of its base. On blocks this is so only while nothing is moved, so it must
be known where it matters:

    keeps_alias    views that must share memory on every worker: one side is written to, and the other is read later
    in_place       writes that other tensors observe; any other write may make a new tensor instead
    isolates       operators whose result has its own memory in the model, and whose input or result is written to later

Two nodes are the same tensor if one is the other after a change in place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..torch_internals.operators import OpOverload
from ..torch_internals.tensors import storage_key
from .recording.recording import ValueSource, memory_of, tensors_in, written_by


class Aliases:
    """Which tensors share memory in a graph."""

    def __init__(self, graph: torch.fx.Graph, sources: Mapping[str, ValueSource]) -> None:
        self.keeps_alias: set[Node] = set()
        self.in_place: set[Node] = set()
        self.isolates: set[Node] = set()
        self._same: dict[Node, Node] = {}
        self._parent: dict[Node, tuple[Node, Node]] = {}
        """For each tensor that is a view: its base, and the node that made the view."""
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
                self._read[tensor] = math.inf  # visible to the user
        self.memories: dict[int, list[Node]] = {}
        for node in self._made:
            memory = memory_of(node)
            if memory is not None and self.same(node) is node:
                self.memories.setdefault(memory, []).append(node)
        for time, node, tensor in writes:
            self._follow(time, node, tensor)
        self._find_isolated(writes)

    def same(self, node: Node) -> Node:
        """The first node of this tensor."""
        while node in self._same:
            node = self._same[node]
        return node

    def _find_source(self, node: Node) -> None:
        """Note the tensor whose memory a node shares."""
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
        """The views from a tensor back to its base, each with the node that made it."""
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
        last = {memory_of(tensor): time for time, _, tensor in writes}  # the last one: they are in order
        for node, time in self._made.items():
            if node.op != "call_function" or not isinstance(node.target, OpOverload):
                continue
            made, given = _memories([node]), _memories(node.all_input_nodes)
            if not made & given and any(last.get(memory, -1) > time for memory in made | given):
                self.isolates.add(node)


def _memories(nodes: Iterable[Node]) -> set[int]:
    return {storage_key(x) for node in nodes for x in tensors_in(node.meta.get("val"))}


def isolated(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, with results that share no memory with its arguments."""

    def own(x: object, memories: set[int]) -> Any:
        if isinstance(x, Tensor):
            return x.clone() if storage_key(x) in memories else x
        return type(x)(own(part, memories) for part in x) if isinstance(x, list | tuple) else x

    def apart(*given: object) -> Any:
        return own(run(*given), {storage_key(x) for x in given if isinstance(x, Tensor)})

    return apart
