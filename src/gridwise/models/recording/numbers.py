"""The numbers of tensors that depend on no input: computed for real when the code of a model needs them.

A fake has no numbers, but the graph that is being made says how it came to be. What `.item()`, a branch, a mask or a
cache needs is computed from those nodes that lead to it, as long as these begin with Python numbers, shapes, buffers and
other tensors that are there. Nothing is computed that nobody asks for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg

from ...fake.nested import mapped
from ...operators.functions import short_name
from ...torch_internals.modes import without_modes
from ...torch_internals.operators import OpOverload
from ...torch_internals.tracer import NEEDS_NUMBERS, TracedTensor, TracedTensorMode, node_of
from .recording import draws, erase, memories_of, nodes_in, tensors_in, where, written_by

aten = torch.ops.aten
_LIKE = "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided"
ONLY_SHAPES = {
    **dict.fromkeys(_LIKE.split(), 0),
    **dict.fromkeys(("to", "type_as", "expand_as", "view_as", "reshape_as"), 1),
}
"""Operators that read no numbers of the tensor at this position."""


class DependsOn(Exception):
    """A tensor has no numbers, because it depends on what is named."""


class KnownNumbers:
    """The numbers of the tensors of one graph; `placeholders` are named, and None if they have no numbers."""

    def __init__(self, placeholders: Mapping[str, Tensor | None]) -> None:
        self.names, self.placeholders = list(placeholders), list(placeholders.values())
        self.reads: dict[int, Tensor] = {}
        """The tensors from outside the graph whose numbers are in it."""
        self.because = ""
        """What the tensor depends on that an operator asked for in vain."""
        self._known: dict[Node, Any] = {}
        self._ran = set[Node]()
        self._order: dict[Node, int] = {}
        self._writers: dict[int, list[Node]] = {}
        self._tracer: Any = None
        self._unanswered = list[Exception]()

    def follow(self, tracer: Any, mode: TracedTensorMode) -> None:
        """Answer operators on the fakes of `mode` that need numbers, from the graph that `tracer` makes."""
        self._tracer, self._unanswered = tracer, mode.unanswered
        mode.answer = lambda *call: self._answer(mode, *call)

    def _answer(self, mode: TracedTensorMode, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operator on real numbers, with fakes in place of tensors; None if there are no numbers."""
        try:
            if op is aten.masked_select.default:  # needs the numbers of the mask only
                shape = torch.broadcast_shapes(*(x.shape for x in args))
                result = args[0].new_empty(int(self.read(args[1]).expand(shape).sum()))
            else:
                result = self._called(
                    op, *mapped(lambda x: self.read(x) if isinstance(x, Tensor) else x, (args, kwargs))
                )
        except DependsOn as error:
            if op is aten.equal.default and not any(x.dim() or self._is_followed(x) for x in args):
                return True  # a check of an operator's own, which is made when it runs: quantile's, before torch 2.13
            self.because = str(error)
            return None

        def fake_of(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            with mode:
                return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)

        return mapped(fake_of, result)

    def read(self, x: Tensor) -> Tensor:
        """The numbers of a tensor, on which the graph depends from now on."""
        return self.of([x], reads=True)[0]

    def note(self, given: Any, only_scalars: bool = False) -> None:
        """Note that numbers of the real tensors in some arguments are read, or of those without dims: an index's."""
        if isinstance(given, list | tuple):
            for each in given:
                self.note(each, only_scalars)
        elif isinstance(given, slice):
            self.note((given.start, given.stop, given.step), only_scalars)
        elif isinstance(given, Tensor) and not (isinstance(given, TracedTensor) or (only_scalars and given.dim())):
            self.reads[id(given)] = given

    def called(self, method: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What a method gives that is no operator, `tolist` or `numpy`; the error of an operator if there are no numbers."""
        try:
            result = self._called(method, (self.read(x), *args), kwargs)
        except DependsOn as cause:
            self.because, error = str(cause), NEEDS_NUMBERS[0](f"{method.__name__}()")  # type: ignore[arg-type]
            self._unanswered.append(error)
            raise error from None
        if isinstance(result, np.ndarray):
            result.flags.writeable = False  # what is written to it would be lost
        return result

    def of(self, tensors: Sequence[Tensor], reads: bool = False) -> list[Tensor]:
        """The numbers of fakes and real tensors; what shares memory shares it.

        Raises
        ------
        DependsOn : naming what has no numbers
        """
        nodes = [self._node(x) if isinstance(x, TracedTensor) else None for x in tensors]
        values = self._values([node for node in nodes if node is not None], None, reads)
        if reads:
            self.note(tensors)
        return [x if node is None else values[node] for x, node in zip(tensors, nodes, strict=True)]

    def line_of(self, x: Tensor) -> str:
        """Where in the user's code a fake was made."""
        try:
            return str(self._node(x).meta.get("line") or "")
        except DependsOn:
            return ""

    def _is_followed(self, x: Tensor) -> bool:
        try:
            return self._node(x) is not None
        except DependsOn:
            return False

    def _node(self, x: Tensor) -> Node:
        try:
            if self._tracer is not None:
                return node_of(x, self._tracer)
        except KeyError:
            pass
        raise DependsOn("a tensor that is not followed")

    # What leads to a tensor

    def _values(self, nodes: Sequence[Node], before: Node | None, reads: bool) -> dict[Node, Any]:
        """The values of nodes, as they are before another one is run."""
        if not nodes:
            return {}
        self._note_new_nodes()
        end = self._order[before] if before is not None else len(self._order)
        found = self._leading_to(nodes, end)
        writes = any(written_by(node) for node in found)
        values = dict(self._known)
        lacking = [n for n in found if n.op == "placeholder" and self.placeholders[self._order[n]] is None]
        if lacking:
            raise DependsOn(self.names[max(map(self._order.__getitem__, lacking))])  # an input rather than a parameter
        self._ran |= found
        for node in sorted(found, key=self._order.__getitem__):
            values[node] = self._value(node, values, writes, reads)
            if not any(memory in self._writers for memory in memories_of(node)):
                self._known[node] = values[node]
        return values

    def _note_new_nodes(self) -> None:
        new = list[Node]()
        for node in reversed(self._tracer.graph.nodes):
            if node in self._order:
                break
            new.append(node)
        for node in reversed(new):
            self._order[node] = len(self._order)
            for memory in (memory for each in written_by(node) for memory in memories_of(each)):
                self._writers.setdefault(memory, []).append(node)
                self._known = {n: v for n, v in self._known.items() if memory not in memories_of(n)}

    def _leading_to(self, nodes: Iterable[Node], end: int) -> set[Node]:
        """The nodes to be run, among them those that change memory of others."""
        found, left = set[Node](), list(nodes)
        while left:
            node = left.pop()
            if node in found or node in self._known:
                continue
            found.add(node)
            left += needed_by(node)
            writers = (each for memory in memories_of(node) for each in self._writers.get(memory, ()))
            left += [each for each in writers if self._order[each] < end]
        return found

    def _value(self, node: Node, values: dict[Node, Any], writes: bool, reads: bool) -> Any:
        if node.op in ("placeholder", "get_attr"):
            value = self._from_outside(node)
            if reads and not _is_literal(node):
                self.reads[id(value)] = value
            return value.clone() if writes else value
        if not isinstance(node.target, OpOverload) and node.target is not operator.getitem:
            raise DependsOn(where(node))
        if draws(node):
            raise DependsOn(f"random numbers ({where(node)})")
        args = map_arg((node.args, node.kwargs), lambda each: values[each] if each in values else _blank(each))
        value = self._called(node.target, *args)
        made, expected = tensors_in(value), tensors_in(node.meta["val"])
        if [(x.shape, x.dtype) for x in made] != [(x.shape, x.dtype) for x in expected]:  # under autocast
            raise DependsOn(f"{where(node)}, whose dtype depends on a switch")
        return value

    def _from_outside(self, node: Node) -> Tensor:
        if node.op == "get_attr":
            return getattr(self._tracer.root, str(node.target))
        value = self.placeholders[self._order[node]]
        assert value is not None
        return value

    @staticmethod
    def _called(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with without_modes(), torch.inference_mode(False), torch.no_grad():
            return op(*args, **kwargs)

    def changed_after_reading(self, graph: Graph) -> Iterator[tuple[str, Node]]:
        """The tensors of modules whose numbers were read and which an operator changes, each with that operator."""
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        pairs = zip(placeholders, self.placeholders, strict=True)
        read = {memory: node for node, x in pairs if id(x) in self.reads for memory in memories_of(node)}
        for node in graph.nodes if read else ():
            for memory in (memory for each in written_by(node) for memory in memories_of(each)):
                if memory in read:
                    yield self.names[placeholders.index(read[memory])], node

    # What is left of it in the graph

    def fold(self, module: GraphModule, mode: TracedTensorMode) -> None:
        """Put constants in place of results whose shapes depend on numbers, and of masks; drop what is not needed."""
        graph = module.graph

        def constant(value: Tensor, node: Node) -> Node:
            name = f"_numbers_{len(graph.nodes)}"
            module.register_buffer(name, value.clone(memory_format=torch.contiguous_format))  # not a view
            with graph.inserting_before(node):
                made = graph.get_attr(name)
            made.meta = {**node.meta, "val": mode.from_tensor(getattr(module, name))}
            return made

        for node in [node for node in graph.nodes if isinstance(node.target, OpOverload)]:
            assert isinstance(node.target, OpOverload)
            if node.target in (aten.index.Tensor, aten.masked_select.default):
                self._fold_masks(node, constant)
            elif torch.Tag.dynamic_output_shape in node.target.tags:
                try:
                    value = self._values([node], node, True)[node]
                except DependsOn:  # its size is given
                    continue
                parts = {node: value} if isinstance(value, Tensor) else {u: value[u.args[1]] for u in node.users}
                self._ran |= parts.keys()
                for each, part in parts.items():
                    each.replace_all_uses_with(constant(part, each))
            elif torch.Tag.data_dependent_output in node.target.tags:
                self._ran.add(node)
        if self._ran:
            self._drop(graph)
            module.recompile()

    def _fold_masks(self, node: Node, constant: Callable[[Tensor, Node], Node]) -> None:
        """Make the masks of an indexing indices."""
        x, given = node.args[:2]
        assert isinstance(x, Node)
        selects = node.target is aten.masked_select.default
        indices: list[Any] = [given] if selects else list(given)  # type: ignore[arg-type]
        is_mask = [isinstance(each, Node) and each.meta["val"].dtype in (torch.bool, torch.uint8) for each in indices]
        if not any(is_mask):
            return
        values = self._values([each for each, mask in zip(indices, is_mask, strict=True) if mask], node, True)
        if selects:
            shape = torch.broadcast_shapes(x.meta["val"].shape, values[given].shape)  # type: ignore[index]
            values[given] = values[given].expand(shape)  # type: ignore[index]
            if shape != x.meta["val"].shape:
                with node.graph.inserting_before(node):
                    wide = node.graph.call_function(aten.expand.default, (x, list(shape)))
                wide.meta, x = {**node.meta, "val": x.meta["val"].expand(shape)}, wide
        made = list[Any]()
        for each, mask in zip(indices, is_mask, strict=True):
            made += [constant(part, node) for part in values[each].nonzero().unbind(1)] if mask else [each]
        node.target, node.args = aten.index.Tensor, (x, made)

    def _drop(self, graph: Graph) -> None:
        """Remove what was made for its numbers only."""
        calls = [node for node in graph.nodes if node.op == "call_function"]
        written = {memory for node in calls for each in written_by(node) for memory in memories_of(each)}
        outside = {memory for node in graph.nodes if node.op != "call_function" for memory in memories_of(node)}
        groups = dict[object, list[Node]]()
        for node in calls:
            shared = written.intersection(memories_of(node))
            groups.setdefault(shared.pop() if shared else node, []).append(node)
        for memory, nodes in reversed(groups.items()):
            changes = memory in outside and any(map(written_by, nodes))
            if self._ran.issuperset(nodes) and not changes and all(u in nodes for n in nodes for u in n.users):
                for node in reversed(nodes):
                    erase(node)


def needed_by(node: Node) -> list[Node]:
    """The nodes whose numbers an operator needs."""
    if isinstance(node.target, OpOverload):
        position = ONLY_SHAPES.get(short_name(node.target))
        if position is not None and position < len(node.args):
            return nodes_in([arg for i, arg in enumerate(node.args) if i != position])
    return node.all_input_nodes


def _blank(node: Node) -> Tensor:
    """A tensor like that of a node, with any numbers."""
    x: Tensor = node.meta["val"]
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _is_literal(node: Node) -> bool:
    """Whether a constant is one of `torch.tensor` in the code of the model."""
    users = (aten.lift_fresh.default, aten.lift_fresh_copy.default)
    return node.op == "get_attr" and all(user.target in users for user in node.users)
