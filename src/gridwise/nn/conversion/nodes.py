"""What becomes of each kind of node in a model's graph: a layer, a function with a rule, or a problem.

A rule changes the graph where it has to, and says what is known of the result (`walk`, `state`).
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ...errors import PartitionError
from . import (
    applying,
    blocks,
    expanding,
    functions,
    indexing,
    joining,
    layers,
    products,
    recurrent,
    reducing,
    reshaping,
)
from .aliases import changed_through_views
from .model import GlobalShape, MadeAtCall, made
from .moves import Replicated
from .state import Lost, OnGrid, Parts, Several, State, Symbol, Whole
from .walk import Node, Unfit, Walk, given, name_of

NO_LAYER = "has no distributed layer"
ROOMS = (joining, products, expanding, reshaping, indexing, reducing, applying, recurrent)
RULES: dict[str, Any] = {name: rule for room in ROOMS for name, rule in room.RULES.items()}
ATTRIBUTES: dict[str, tuple[Any, ...]] = {"T": ("t",), "mT": ("transpose", -2, -1), "data": ("detach",)}
"""Attributes of tensors that are methods by another name."""
TAKE_PARAMETERS = {
    *products.RULES,
    *expanding.RULES,
    *applying.RULES,
    *recurrent.RULES,
    "getitem",
    "arange",
    "with_mask",
}
"""Rules that know what to do where no tensor, or not the first, is on the grid."""


class Conversion(Walk):
    """What becomes of each kind of node."""

    shared: dict[int, Node]
    """By parameter, the node that sums its gradient."""

    def run(self) -> None:
        self.shared = {}
        self.problems += changed_through_views(self.graph, self.model)
        for node in list(self.graph.nodes):
            self.states[node] = self._found(node)
        names: dict[int, str] = {}
        own = [(owner, *each) for owner, module in self.model.named_modules() for each in module._parameters.items()]
        for owner, last, parameter in own:
            name = f"{owner}.{last}" if owner else last
            first = names.setdefault(id(parameter), name)
            if (
                parameter is not None
                and first != name
                and {first.rpartition(".")[0], name.rpartition(".")[0]} & set(self.modules)
            ):
                self.problems.append(f"{first} and {name} are one parameter, which two layers would hold apart")
        for name in dict.fromkeys(self.parameters):
            if name.rpartition(".")[0] in self.modules:
                self.problems.append(f"{name} is used outside of its layer, which holds it in blocks")

    def _found(self, node: Node) -> State:
        """What is known of a node. After something that does not fit, a guess: all that stands in the way is to be named."""
        if any(isinstance(self.states[arg], Lost) for arg in node.all_input_nodes):
            name = name_of(node.target)
            known = {*RULES, *functions.ELEMENTWISE_NAMES, "size", "shape", "getattr", "dim"}
            targets = {*functions.LAYERS, *functions.NUMBERS}
            if node.op in ("call_function", "call_method") and name not in known and node.target not in targets:
                self.problem(node, f"{name} has no rule")
            if node.op == "call_module" and not layers.is_known(self.model.get_submodule(node.target)):
                self.problem(
                    node, f"{node.target}: torch.nn.{type(self.model.get_submodule(node.target)).__name__} {NO_LAYER}"
                )
            return Lost()
        try:
            state: State = getattr(self, f"_{node.op}")(node)
        except Unfit as error:
            self.problem(node, str(error))
            return Lost()
        except (PartitionError, AssertionError, IndexError) as error:
            if not self.problems and not isinstance(error, AssertionError):
                raise
            if not self.problems:
                self.problem(node, f"{name_of(node.target)} of such tensors has no rule")
            return Lost()  # by a wrong guess
        return state

    def output_partitions(self) -> Any:
        output = next(node for node in self.graph.nodes if node.op == "output")
        return _each_node(output.args[0], self._partition_of)

    def _partition_of(self, node: Node) -> Any:
        state = self.states[node]
        if _is_named_tuple(node.target):  # its parts may be lists and dicts
            return made(node.target, _each_node(list(node.args), self._partition_of))
        if isinstance(state, Several):
            return state.each.P if state.count is None else (state.each.P,) * state.count
        if isinstance(state, Parts):
            parts = [part.P if isinstance(part, OnGrid) else None for part in state.each]
            return made(state.kind, parts)
        return state.P if isinstance(state, OnGrid) else None

    def _placeholder(self, node: Node) -> OnGrid:
        return OnGrid.unknown(self.inputs.partitions[node.target])

    def _output(self, node: Node) -> None:
        for arg in node.all_input_nodes:
            if isinstance(self.states[arg], Whole):
                self.problem(node, "a parameter as an output of the model")

    def _get_attr(self, node: Node) -> State:
        """A parameter or buffer of the model, or a tensor that its code made of numbers."""
        parent, _, name = node.target.rpartition(".")
        owner = self.model.get_submodule(parent)
        value = getattr(owner, name)
        if not isinstance(value, torch.Tensor):
            return self.problem(node, f"uses {node.target!r}, which is no tensor")
        state = Whole.of(torch.empty(value.shape, dtype=value.dtype, device="meta"))
        if name in owner._parameters:
            self.parameters.append(node.target)
            if id(value) not in self.shared:  # one sum for all uses of a parameter, under any of its names
                P, title = self.P_x, node.target
                make = partial(Replicated, P, title)
                self.shared[id(value)] = self.insert(node.next, "shared", P, make, (node,), state)
            shared = self.shared[id(value)]
            node.replace_all_uses_with(shared, delete_user_cb=lambda user: user is not shared)
        elif name not in owner._buffers:
            if not hasattr(self.model, "_constants"):
                self.model.add_module("_constants", torch.nn.Module())
            label = node.target.replace(".", "_")
            self.model.get_submodule("_constants").register_buffer(label, value, persistent=False)
            node.target = f"_constants.{label}"
        return state

    def _call_module(self, node: Node) -> State:
        module, tensors = self.model.get_submodule(node.target), self.on_grid(node)
        kind = type(module)
        if not tensors:
            return self.problem(node, f"{node.target}: torch.nn.{kind.__name__} is called without a tensor on the grid")
        x = tensors[0]
        state = self.states[x]
        assert isinstance(state, OnGrid)
        if layers.has_hooks(module):
            return self.problem(node, f"{node.target}: torch.nn.{kind.__name__} has hooks or parametrizations", state)
        if isinstance(module, layers.ELEMENTWISE):
            return state
        if isinstance(module, torch.nn.Flatten):
            return reshaping.flatten(self, node, x, module.start_dim, module.end_dim)
        if isinstance(module, torch.nn.Unflatten):
            return reshaping.unflatten(self, node, x, module.dim, module.unflattened_size)
        if kind in layers.ALONG:
            dim = layers.ALONG[kind]
            return reducing.along_dims(self, node, x, module.dim if dim is None else dim, kind.__name__)
        if isinstance(module, torch.nn.PixelShuffle):
            return reshaping.pixel_shuffle(self, node, x, module.upscale_factor)
        if isinstance(module, torch.nn.PixelUnshuffle):
            return reshaping.pixel_unshuffle(self, node, x, module.downscale_factor)
        if not layers.has_layer(module):
            return self.problem(node, f"{node.target}: torch.nn.{kind.__name__} {NO_LAYER}", state)
        unpools, more = "MaxUnpool" in kind.__name__, len(node.args) + len(node.kwargs) > 1
        if len(tensors) != 1 + unpools or (more and not unpools and "ConvTranspose" not in kind.__name__):
            return self.problem(node, f"{node.target} is called with more than one tensor", state)
        known = self.modules.get(node.target)
        if known is not None and known[0] != state.P:
            if known[0].dim != state.dim:
                return self.problem(
                    node, f"{node.target} is used on tensors of {known[0].dim} and of {state.dim} dims", state
                )
            self.replace(node, {x: self.moved(node, x, known[0])})
            state = OnGrid(known[0], state.extents)
        if unpools and (x is not node.args[0] or self._partition_of(tensors[1]) != state.P):
            return self.problem(node, f"{node.target}: values and indices that do not lie on one grid", state)
        P = state.P
        self.modules[node.target] = (P, lambda: layers.converted(module, P))
        result = OnGrid(P, layers.extents_after(module, state.extents))
        return Several(result, 2) if getattr(module, "return_indices", False) else result

    def _call_function(self, node: Node) -> State:
        return self._call(node, name_of(node.target))

    def _call_method(self, node: Node) -> State:
        return self._call(node, node.target)

    def _call(self, node: Node, name: str) -> State:
        if node.target is not getattr:
            node.kwargs = {functions.ALIASES.get(key, key): value for key, value in node.kwargs.items()}
        elif node.args[1] in ATTRIBUTES:
            node.op, (name, *more) = "call_method", ATTRIBUTES[node.args[1]]
            node.target, node.args = name, (node.args[0], *more)
        states = [state for arg in node.all_input_nodes if (state := self.states[arg]) is not None]
        if _is_named_tuple(node.target):  # to be returned
            self._output(node)
            each = [self.states.get(arg) if isinstance(arg, torch.fx.Node) else None for arg in node.args]
            return Parts(node.target, tuple(each))
        if not states:
            return self._number(node, name)
        if all(isinstance(state, Whole) for state in states):
            return self._of_parameters(node, name)
        state = next(state for state in states if not isinstance(state, Whole))
        if isinstance(state, OnGrid):
            if name in ("size", "shape") or (name == "getattr" and node.args[1] == "shape"):
                self._size(node, state)
                return None
            if name in ("numel", "nelement"):
                P = state.P
                shape = self.insert(node, "shapes", P, lambda: GlobalShape(P), (node.args[0],), None)
                node.op, node.target, node.args, node.kwargs = "call_function", math.prod, (shape,), {}
                return None
            if name == "dim" or (name == "getattr" and node.args[1] in ("dtype", "device", "ndim")):
                return None
            if node.target in functions.LAYERS:
                return self._made_at_call(node, state, name)
            if name in ("to", "type_as"):  # another tensor says the dtype only
                return self.states[node.args[0]]
            if name in functions.ELEMENTWISE_NAMES:
                return joining.elementwise(self, node, name)
        first = given(node, 0, "input")
        if "input" in node.kwargs:
            node.args, node.kwargs = (first, *node.args), {k: v for k, v in node.kwargs.items() if k != "input"}
        joins = name in joining.RULES or name in ("max", "min") or name in TAKE_PARAMETERS
        on_its_own = isinstance(first, torch.fx.Node) and isinstance(self.states[first], OnGrid)
        if name in RULES and (joins or on_its_own or (name == "getitem" and first is not None)):
            return RULES[name](self, node, name)
        return self.problem(node, f"{name} has no rule", state.each if isinstance(state, Several) else state)

    def _of_parameters(self, node: Node, name: str) -> State:
        """What is made of parameters alone, and perhaps of sizes."""
        states = [state for arg in node.all_input_nodes if isinstance(state := self.states[arg], Whole)]
        if name in ("size", "shape") or (name == "getattr" and node.args[1] in ("shape", "dtype", "device", "ndim")):
            return None
        sized = any(self.states[arg] is None for arg in node.all_input_nodes)
        if name == "getitem" and sized:
            return indexing.of_parameter(self, node, states[0])
        if name in TAKE_PARAMETERS - {"getitem"} and (sized or name == "embedding"):
            return RULES[name](self, node, name)
        if name in functions.ELEMENTWISE_NAMES and any(state.like is None for state in states):
            return joining.of_parameters(states)
        known = name in functions.ELEMENTWISE_NAMES or name in functions.OF_PARAMETERS
        return self.whole_dims(node) if known else self.problem(node, f"{name} of a parameter has no rule")

    def _number(self, node: Node, name: str) -> State:
        """What is done with sizes; a number from a size is remembered as such."""
        if name == "getitem" and node.args[0] in self.sizes:
            sizes, index = self.sizes[node.args[0]], node.args[1]
            if isinstance(sizes, tuple) and isinstance(index, int | slice):
                with suppress(TypeError, IndexError):  # a slice between sizes that only the call knows
                    self.sizes[node] = sizes[index]
            return None
        if name == "arange":
            return expanding.arange(self, node)
        if name == "add":
            ends: list[Any] = [self.sizes.get(arg) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
            if all(isinstance(end, tuple | list) for end in ends):  # x.shape[:2] + (-1,)
                listed = [part for end in ends for part in end]
                known = [self.sizes.get(part) if isinstance(part, torch.fx.Node) else part for part in listed]
                self.sizes[node] = tuple(part if isinstance(part, int | Symbol) else Symbol() for part in known)
        if node.target not in functions.NUMBERS and name != "getitem":
            self.problem(node, f"{name} of sizes has no rule")
        return None

    def _size(self, node: Node, state: OnGrid) -> None:
        """``x.shape``, ``x.size()`` and ``x.size(d)``: those of the global tensor."""
        dim = given(node, 1, "dim") if name_of(node.target) == "size" else None
        self.sizes[node] = state.extents if dim is None else state.extents[dim]
        P = state.P
        self.sources |= dict.fromkeys(state.extents, P)
        shape = self.insert(node, "shapes", P, lambda: GlobalShape(P), (node.args[0],), None)
        node.op, node.target, node.args, node.kwargs = "call_function", blocks.chosen, (shape, dim), {}

    def _made_at_call(self, node: Node, state: OnGrid, name: str) -> State:
        problem = functions.problem_with(node, name)
        if problem is not None:
            return self.problem(node, f"{name} {problem}", state)
        if "input" in node.kwargs:
            node.args, node.kwargs = (
                (node.kwargs["input"], *node.args),
                {k: v for k, v in node.kwargs.items() if k != "input"},
            )
        if name == "pad":
            padded = functions.padded_dims(node, state)
            if (
                any(d < 2 for d in padded) or not 3 <= state.dim <= 5
            ):  # no layer pads these: torch does, where they are whole
                _, state = self.with_whole(node, node.args[0], padded)
            if not state.is_cut(padded):
                node.op, node.target = "call_function", blocks.padded
                return state.with_extents({d: Symbol() for d in padded})
        module, P = f"_made_{node.name}", state.P
        make = functions.LAYERS[node.target]
        in_training, in_evaluation = node.meta.get("training", (True, False)) if "dropout" in name else (True, False)
        if not in_training:
            return state if not in_evaluation else self.problem(node, f"{name} in evaluation only", state)
        follows, owner = not in_evaluation, self.owner(node)
        self.modules[module] = (P, lambda: MadeAtCall(make, P, follows, owner, name in functions.DROPOUTS))
        node.op, node.target = "call_module", module
        if name in functions.DROPOUTS:
            return state
        return state.with_extents({d: Symbol() for d in range(state.dim - functions.space_of(name, state), state.dim)})


def _is_named_tuple(target: Any) -> bool:
    return isinstance(target, type) and hasattr(target, "_fields")


def _each_node(value: Any, change: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return change(value)
    if isinstance(value, dict):
        return {key: _each_node(part, change) for key, part in value.items()}
    return made(type(value), [_each_node(part, change) for part in value]) if isinstance(value, tuple | list) else None
