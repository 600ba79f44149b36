"""The walk over a model's graph: what is known of every node, which modules the new model has, and what stands in the way.

Rules (`joining`, `reshaping`, `indexing`, `reducing`) say what a node makes of its inputs. They change the graph with what
is here: put a module in, bring a tensor to a grid on which some dims are whole, note a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph

from ...partition import Partition
from ..primitives.repartition import Repartition
from . import blocks
from .inputs import Inputs
from .state import Extent, OnGrid, State, Symbol, Whole
from .trace import code_of

Node = Any
"""A `torch.fx.Node`. Its arguments are annotated as anything that a graph may hold, which says nothing here."""


Check = tuple[str, int, str, int, str]
"""A dim of a node, a dim of another, and what combines the two."""


class Unfit(Exception):
    """A node that cannot be converted, where nothing can be said of what it makes."""


class Walk:
    """One pass over the graph; `build` puts the new modules in, once there are no problems."""

    def __init__(self, model: torch.nn.Module, graph: Graph, P_x: Partition, inputs: Inputs) -> None:
        self.model, self.graph, self.P_x, self.inputs = model, graph, P_x, inputs
        self.states: dict[Node, State] = {}
        self.problems: list[str] = []
        self.modules: dict[str, tuple[Partition, Callable[[], torch.nn.Module]]] = {}
        """The modules of the new model: where they lie, and how they are made."""
        self.sizes: dict[Node, Extent | tuple[Extent, ...]] = {}
        """Nodes that are the size of a tensor, or one of its extents."""
        self.sources: dict[Extent, Partition] = {}
        """Of extents whose numbers the model has asked for, where the tensor lies."""
        self.original = set(graph.nodes)
        self.checks: list[Check] = []
        """Extents that have to be equal."""
        self.parameters: list[str] = []
        """Names of the parameters that the model uses outside of layers."""

    def build(self) -> None:
        aliases: dict[int, list[str]] = {}
        for name, module in self.model.named_modules(remove_duplicate=False):
            aliases.setdefault(id(module), []).append(name)
        replaced = {id(module): name for name, module in self.model.named_modules() if name in self.modules}
        names = {name: aliases[key] for key, name in replaced.items()}
        for name, (_, make) in self.modules.items():
            layer = make()
            for each in names.get(name, [name]):
                parent, _, child = each.rpartition(".")
                self.model.get_submodule(parent).add_module(child, layer)
        self.graph.lint()

    def problem(self, node: Node, what: str, state: State = None) -> State:
        """Note what cannot be converted, and go on as if it could, to find all of it."""
        code = code_of(node)
        self.problems.append(f"{what}{f':  {code}' if code else ''}")
        return state

    def on_grid(self, node: Node) -> list[Node]:
        """The inputs of a node that lie on a grid."""
        return [arg for arg in node.all_input_nodes if isinstance(self.states[arg], OnGrid)]

    def insert(
        self, before: Node, kind: str, P: Partition, make: Callable[[], torch.nn.Module], args: tuple, state: State
    ) -> Node:
        """A new module, and a node that calls it, before another."""
        name = f"_{kind}_{before.name}"
        while name in self.modules:
            name += "_"
        self.modules[name] = (P, make)
        with self.graph.inserting_before(before):
            call = self.graph.call_module(name, args)
        self.states[call] = state
        return call

    def call(self, before: Node, function: Any, args: tuple, state: State = None) -> Node:
        """A new node that calls a function, before another."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(function, args)
        self.states[node] = state
        return node

    def replace(self, node: Node, new: dict[Node, Node]) -> None:
        """Give the node other inputs."""
        node.args = torch.fx.map_arg(node.args, lambda arg: new.get(arg, arg))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda arg: new.get(arg, arg))

    def with_whole(self, node: Node, x: Node, dims: Sequence[int]) -> tuple[Node, OnGrid]:
        """The input `x` of `node` with these dims whole: as it is, or moved so that another dim is cut instead."""
        state = self.states[x]
        assert isinstance(state, OnGrid)
        if not state.is_cut(dims):
            return x, state
        target = state.with_whole(dims)
        if target is None:
            raise Unfit(f"{name_of(node.target)} of all dims of a tensor on the grid {state.P.shape}")
        moved = self.moved(node, x, target.P)
        self.replace(node, {x: moved})
        return moved, target

    def moved(self, node: Node, x: Node, P: Partition) -> Node:
        """`x` on another partition with as many axes, before `node`."""
        state = self.states[x]
        assert isinstance(state, OnGrid)
        source = state.P
        return self.insert(node, "to", source, lambda: Repartition(source, P), (x,), OnGrid(P, state.extents))

    def rebalanced(self, node: Node, state: OnGrid) -> OnGrid:
        """Blocks that the node left uneven, made even again after it."""
        name = f"_even_{node.name}"
        self.modules[name] = (state.P, lambda: Repartition(state.P, state.P))
        with self.graph.inserting_after(node):
            even = self.graph.call_module(name, (node,))
        node.replace_all_uses_with(even, delete_user_cb=lambda user: user is not even)
        self.states[even] = state
        return state

    def whole_dims(self, node: Node) -> State:
        """What a function makes of parameters and numbers alone, asked of torch without memory."""

        def like(arg: Node) -> Any:
            state = self.states[arg]
            if state is None and isinstance(self.sizes.get(arg), int):
                return self.sizes[arg]
            if not isinstance(state, Whole) or state.like is None:
                raise TypeError("with sizes that only the call knows")
            return state.like

        try:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), like)
            if node.op == "call_method":
                return Whole.of(getattr(args[0], node.target)(*args[1:], **kwargs))
            return Whole.of(node.target(*args, **kwargs))
        except (TypeError, RuntimeError, ValueError, IndexError, AttributeError) as error:
            return self.problem(node, f"{name_of(node.target)} of parameters: {error}")

    def owner(self, node: Node) -> torch.nn.Module | None:
        """The module whose code calls the node; None for the model itself."""
        stack = list(node.meta.get("nn_module_stack", {}).values())
        return self.model.get_submodule(stack[-1][0]) if stack and stack[-1][0] else None

    def must_equal(self, x: Node, dim: int, other: Node, its: int, name: str) -> None:
        """Let every rehearsal look whether two tensors have the same extent there; if not, all workers refuse."""
        self.checks.append((self._origin(x), dim, self._origin(other), its, name))

    def _origin(self, node: Node) -> str:
        """The name of the node of the sequential graph whose value a node has, on another grid perhaps."""
        while node not in self.original:
            node = node.args[0].args[node.args[1]] if node.target is blocks.part else node.all_input_nodes[0]
        return str(node.name)


def name_of(target: Any) -> str:
    """The name of a function or method in a graph, without its module."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def is_inplace(node: Node, name: str) -> bool:
    """Whether a function or method of this name changes its first argument."""
    operators = ("iadd", "isub", "imul", "itruediv")
    if name in ("and_", "or_"):  # operators of Python, called so because the words are taken
        return False
    return name in operators or (name.endswith("_") and not name.endswith("__")) or bool(node.kwargs.get("inplace"))


def given(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a node, by its place or its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def dims_of(dims: Any, rank: int) -> list[int] | None:
    """Dims as torch takes them, counted from the front; None if they are not numbers."""
    listed = list(dims) if isinstance(dims, tuple | list) else [dims]
    if not all(isinstance(d, int) and not isinstance(d, bool) and -rank <= d < rank for d in listed):
        return None
    return [d % rank for d in listed]


def fresh(extent: Any = None) -> Extent:
    return extent if isinstance(extent, int) else Symbol()
