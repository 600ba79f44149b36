"""From a torch model to one on a grid: walk its graph, keep track of every tensor's grid, and name what does not fit.

Every tensor of the graph lies on some partition, with one axis per dim. A rule says what a node makes of it:

    a layer              the distributed layer of the same name; the grid stays
    elementwise          as it is, if all tensors lie on the same grid
    along or over dims   as it is, if these dims are whole: concatenation, softmax, mean, flatten, reshape
                         otherwise, where dim 0 is left alone: space and channels are gathered and the batch is cut
                         instead, by one repartition, and then as it is
    sizes                those of the global tensor

What has no rule is collected, all of it, and raised before anything runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph

from ...errors import PartitionError, UnsupportedError, describe
from ...partition import Partition
from ..repartition import Repartition
from ..replicas import check_replicas
from . import functions, layers
from .model import DistributedModel, GlobalShape, MadeAtCall
from .state import OnGrid
from .trace import code_of, traced

Node = Any
"""A `torch.fx.Node`. Its arguments are annotated as anything that a graph may hold, which says nothing here."""


def distribute(model: torch.nn.Module, P_x: Partition) -> DistributedModel:
    """A model that runs on the grid `P_x` with the weights of `model`, an ordinary torch model.

    Every worker calls it with the same model; `model` itself is not changed. Its modules are replaced by distributed ones,
    elementwise functions, additions and concatenations run as they are, and where it flattens space, the batch is cut
    instead (`P_y` of the result says where the output lies). Names and global shapes in `state_dict()` are those of `model`.

    Raises
    ------
    UnsupportedError : naming everything in the model that cannot be converted
    PartitionError : if the workers' weights differ

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> model = gridwise.distribute(torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()), P_x)
    >>> model(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 144])
    """
    if P_x.dim < 1:
        raise PartitionError("distribute needs a partition with an axis for each dim of the model's input.")
    name = type(model).__name__
    if layers.has_layer(model):  # a model of one layer
        model = torch.nn.Sequential(model)
    graph = traced(model)
    walk = _Walk(copy.deepcopy(model), graph, P_x)
    with torch.random.fork_rng(devices=[]):  # building layers draws initial values, which loading replaces
        torch.default_generator.manual_seed(0)
        walk.run()
        if walk.problems:
            fix = "write these with torch's modules, or keep that part of the model sequential."
            raise UnsupportedError(
                describe(f"distribute: {name} has parts that cannot be converted.", walk.problems, fix)
            )
        if P_x.active:
            check_replicas(model, P_x)
        walk.build()
    result = DistributedModel(walk.model, graph, f"Distributed{name}")
    result.start(walk.model, P_x, walk.output_partitions(), name)
    return result.train(model.training)


class _Walk:
    """One pass over the graph: `run` finds out, `build` puts the new modules in."""

    def __init__(self, model: torch.nn.Module, graph: Graph, P_x: Partition) -> None:
        self.model, self.graph, self.P_x = model, graph, P_x
        self.states: dict[Node, OnGrid | None] = {}
        self.problems: list[str] = []
        self.modules: dict[str, tuple[Partition, Callable[[], torch.nn.Module]]] = {}
        """The modules of the new model: where they lie, and how they are made."""
        self.sizes: dict[Node, int | None] = {}
        """Nodes that are the size of a tensor: of which dim, None for all."""

    def run(self) -> None:
        for node in list(self.graph.nodes):
            self.states[node] = getattr(self, f"_{node.op}")(node)

    def build(self) -> None:
        for name, (_, make) in self.modules.items():
            parent, _, child = name.rpartition(".")
            self.model.get_submodule(parent).add_module(child, make())
        self.graph.lint()

    def output_partitions(self) -> Any:
        output = next(node for node in self.graph.nodes if node.op == "output")
        return _each_node(output.args[0], lambda node: state.P if (state := self.states[node]) else None)

    # Kinds of nodes

    def _placeholder(self, node: Node) -> OnGrid:
        return OnGrid(self.P_x)

    def _get_attr(self, node: Node) -> None:
        self._problem(node, f"uses the tensor {node.target!r} outside of a layer")

    def _output(self, node: Node) -> None:
        return None

    def _call_module(self, node: Node) -> OnGrid | None:
        module, state = self.model.get_submodule(node.target), self._first(node)
        if state is None or isinstance(module, layers.ELEMENTWISE):
            return state
        if isinstance(module, torch.nn.Flatten):
            return self._flatten(node, state, module.start_dim, module.end_dim)
        if isinstance(module, torch.nn.Softmax | torch.nn.LogSoftmax):
            return self._along(node, state, [1 if module.dim is None else module.dim])
        if not layers.has_layer(module):
            return self._problem(
                node, f"{node.target}: torch.nn.{type(module).__name__} has no distributed layer", state
            )
        if len(node.args) != 1 or node.kwargs:
            return self._problem(node, f"{node.target} is called with more than one tensor", state)
        known = self.modules.get(node.target)
        if known is not None and known[0] != state.P:
            return self._problem(
                node, f"{node.target} is used twice, on the grids {known[0].shape} and {state.P.shape}", state
            )
        self.modules[node.target] = (state.P, lambda: layers.converted(module, state.P))
        cut = state.P.dim > 1 and state.P.shape[1] > 1
        single = cut and getattr(module, "out_channels", 0) == 1  # one channel would broadcast against a block of many
        return replace(state, pooled=state.pooled or single or "Adaptive" in type(module).__name__)

    def _call_function(self, node: Node) -> OnGrid | None:
        return self._call(node, functions.name_of(node.target))

    def _call_method(self, node: Node) -> OnGrid | None:
        return self._call(node, node.target)

    def _call(self, node: Node, name: str) -> OnGrid | None:
        tensors = [state for arg in node.all_input_nodes if (state := self.states[arg]) is not None]
        if not tensors:
            known = node.target in functions.NUMBERS or name == "getitem" or not node.all_input_nodes
            return None if known else self._problem(node, f"{name} of sizes has no rule")
        state = tensors[0]
        if name in ("size", "shape") or (name == "getattr" and node.args[1] == "shape"):
            self._size(node, state)
            return None
        if name == "dim" or (name == "getattr" and node.args[1] in ("dtype", "device", "ndim")):
            return None
        if node.target in functions.LAYERS:
            return self._made_at_call(node, state, name)
        if name in functions.ELEMENTWISE_NAMES:
            return self._elementwise(node, tensors, name)
        if name in ("cat", "concat", "stack"):
            return self._concatenation(node, tensors, name)
        if name == "flatten":
            return self._flatten(node, state, _given(node, 1, "start_dim", 0), _given(node, 2, "end_dim", -1))
        if name in ("view", "reshape"):
            return self._reshape(node, state)
        if name in functions.REDUCTIONS:
            return self._reduction(node, state, name)
        if name in functions.ALONG:
            return self._along(node, state, [_given(node, 1, "dim", None)])
        if name == "chunk":
            return self._along(node, state, [_given(node, 2, "dim", 0)])
        if name == "getitem" and isinstance(node.args[1], int) and functions.name_of(node.args[0].target) == "chunk":
            return state
        return self._problem(node, f"{name} has no rule", state)

    # Rules

    def _elementwise(self, node: Node, tensors: list[OnGrid], name: str) -> OnGrid | None:
        state = tensors[0]
        for other in tensors[1:]:
            if other.P != state.P:
                return self._problem(node, f"{name} of tensors on the grids {state.P.shape} and {other.P.shape}", state)
            if other.pooled != state.pooled:
                return self._problem(node, f"{name} of a pooled tensor and one that is not: their blocks differ", state)
        return state

    def _concatenation(self, node: Node, tensors: list[OnGrid], name: str) -> OnGrid | None:
        state, dim = tensors[0], _given(node, 1, "dim", 0)
        if name == "stack":
            return self._problem(node, "stack has no rule", state)
        if self._elementwise(node, tensors, name) is not None and state.is_cut([dim]):
            return self._problem(node, f"cat along dim {dim}, which the grid {state.P.shape} cuts", state)
        return state

    def _flatten(self, node: Node, state: OnGrid, start: int, end: int) -> OnGrid | None:
        dim = state.P.dim
        first, last = start % dim, end % dim
        if first == 0 and last > 0:
            return self._problem(node, "flatten of the batch dim", state)
        state = self._with_whole(node, state, range(first, last + 1))
        return state.reshaped((*state.P.shape[:first], 1, *state.P.shape[last + 1 :])) if last > first else state

    def _reshape(self, node: Node, state: OnGrid) -> OnGrid | None:
        shape = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], tuple | list) else node.args[1:]
        rest = list(shape[1:])
        keeps = bool(shape) and (self._is_batch(shape[0]) or (shape[0] == -1 and -1 not in rest))
        if not keeps or not all(isinstance(n, int) for n in rest):
            return self._problem(
                node, f"{functions.name_of(node.target)} that does not keep the batch dim and give the others", state
            )
        state = self._with_whole(node, state, range(1, state.P.dim))
        if self._is_batch(shape[0]):
            with self.graph.inserting_before(node):
                own = self.graph.call_method("size", (node.args[0], 0))
            self.states[own] = None
            shape = (own, *rest)
        node.args = (node.args[0], tuple(shape))
        return state.reshaped((state.P.size, *(1,) * len(rest)))

    def _is_batch(self, size: Any) -> bool:
        """Whether a size in the graph is that of dim 0 of a tensor."""
        if not isinstance(size, torch.fx.Node):
            return False
        if size.op == "call_function" and functions.name_of(size.target) == "getitem":
            return bool(size.args[1] == 0 and size.args[0] in self.sizes)
        return self.sizes.get(size) == 0

    def _reduction(self, node: Node, state: OnGrid, name: str) -> OnGrid | None:
        dims = _given(node, 1, "dim", None)
        dims = [dims] if isinstance(dims, int) else dims
        if dims is None or any(d % state.P.dim == 0 for d in dims):
            return self._problem(node, f"{name} over the batch dim, or over all dims", state)
        over = {d % state.P.dim for d in dims}
        state = self._with_whole(node, state, over)
        if _given(node, 2, "keepdim", False):
            return replace(state, pooled=True)
        return state.reshaped(tuple(p for d, p in enumerate(state.P.shape) if d not in over))

    def _along(self, node: Node, state: OnGrid, dims: list[Any]) -> OnGrid | None:
        if any(not isinstance(d, int) for d in dims):
            return self._problem(node, f"{functions.name_of(node.target)} without a dim", state)
        if any(state.is_cut([d]) for d in dims):
            return self._problem(
                node,
                f"{functions.name_of(node.target)} along dim {dims[0]}, which the grid {state.P.shape} cuts",
                state,
            )
        return state

    def _size(self, node: Node, state: OnGrid) -> None:
        """``x.shape``, ``x.size()`` and ``x.size(d)``: those of the global tensor."""
        dim = _given(node, 1, "dim", None) if functions.name_of(node.target) == "size" else None
        self.sizes[node] = dim
        module = f"_shapes_{node.name}"
        self.modules[module] = (state.P, lambda: GlobalShape(state.P))
        with self.graph.inserting_before(node):
            shape = self.graph.call_module(module, (node.args[0],))
        self.states[shape] = None
        node.op, node.target = "call_function", _chosen
        node.args, node.kwargs = (shape, dim), {}

    def _made_at_call(self, node: Node, state: OnGrid, name: str) -> OnGrid:
        module = f"_made_{node.name}"
        make = functions.LAYERS[node.target]
        constant = "dropout" in name and "training" not in node.kwargs and len(node.args) < 3
        self.modules[module] = (state.P, lambda: MadeAtCall(make, state.P, follows_mode=not constant))
        if "input" in node.kwargs:
            node.args, node.kwargs = (
                (node.kwargs["input"], *node.args),
                {k: v for k, v in node.kwargs.items() if k != "input"},
            )
        node.op, node.target = "call_module", module
        return replace(state, pooled=state.pooled or name.startswith("adaptive"))

    def _with_whole(self, node: Node, state: OnGrid, dims: Iterable[int]) -> OnGrid:
        """`state` with these dims whole: as it is, or moved so that the batch is cut instead."""
        if not state.is_cut(dims):
            return state
        target, module = state.by_batch, f"_to_batch_{node.name}"
        self.modules[module] = (state.P, lambda: Repartition(state.P, target.P))
        x = node.args[0]
        with self.graph.inserting_before(node):
            moved = self.graph.call_module(module, (x,))
        self.states[moved] = target
        node.replace_input_with(x, moved)
        return target

    # Helpers

    def _first(self, node: Node) -> OnGrid | None:
        return next((state for arg in node.all_input_nodes if (state := self.states[arg]) is not None), None)

    def _problem(self, node: Node, what: str, state: OnGrid | None = None) -> OnGrid | None:
        code = code_of(node)
        self.problems.append(f"{what}{f':  {code}' if code else ''}")
        return state


def _given(node: Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _chosen(shape: torch.Size, dim: int | None) -> Any:
    return shape if dim is None else shape[dim]


def _each_node(value: Any, change: Callable[[Node], Any]) -> Any:
    if isinstance(value, torch.fx.Node):
        return change(value)
    if isinstance(value, dict):
        return {key: _each_node(part, change) for key, part in value.items()}
    return type(value)(_each_node(part, change) for part in value) if isinstance(value, tuple | list) else None
