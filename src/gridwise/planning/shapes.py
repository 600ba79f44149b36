"""The global shape of every tensor in a model's graph: the sequential model, run on the meta device.

A distributed layer asks the others how its input is cut. On a transport that counts nobody answers, but inside a
converted model every tensor lies in balanced blocks, so that its global shape is all there is to know.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import PartitionError
from ..nn.conversion.model import DistributedModel
from ..nn.conversion.moves import Aligned, Summed
from ..nn.conversion.trace import traced

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Shapes:
    """The global shapes of a model's tensors."""

    nodes: dict[str, Shape]
    """By the name of a node."""
    outputs: list[Shape]
    """Of the tensors that the model returns, in their order."""


def without_numbers(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model on the meta device, made without copying a number; of a deferred model too."""
    memo: dict[int, Any] = {}
    plain = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    for tensor in [*model.parameters(), *model.buffers(), *plain]:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    return copy.deepcopy(model, memo)


def global_shapes(model: torch.nn.Module, x: Tensor) -> Shapes:
    """The shape of the tensor that each node of the model's graph makes of the global input `x`."""
    recorder = _Recorder(torch.fx.GraphModule(model, traced(model)))
    try:
        with torch.no_grad():
            y = recorder.run(x)
    except (RuntimeError, ValueError, IndexError) as error:
        asked = f"{type(model).__name__} cannot take a global input of shape {tuple(x.shape)}, {x.dtype}"
        raise PartitionError(f"plan: {asked}: {error}") from None
    return Shapes(recorder.shapes, [tuple(tensor.shape) for tensor in parts_of(y, Tensor)])


def parts_of(value: Any, kind: type[T]) -> list[T]:
    """All of one kind in what a model returns: one, or tuples, lists and dicts of them."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [part for each in value for part in parts_of(each, kind)]
    return [value] if isinstance(value, kind) else []


class _Recorder(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[str, Shape] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "get_attr" and isinstance(value, Tensor):
            value = value.to("meta")  # what the model's code has made of numbers, such as a range
        if isinstance(value, Tensor):
            self.shapes[n.name] = tuple(value.shape)
        return value


def tell_before_calls(model: DistributedModel, shapes: Shapes, tell: Callable[..., None]) -> None:
    """Let `tell` hear, before each call of a layer, the global shapes of the inputs that it will ask about."""
    calls: dict[str, list[list[Shape]]] = defaultdict(list)
    for node in model.graph.nodes:
        if node.op == "call_module":
            asked = _asked_about(node, model.get_submodule(str(node.target)))
            calls[str(node.target)].append([_shape_of(arg, model, shapes) for arg in asked])
    for name, given in calls.items():
        turn = cycle(given)
        model.get_submodule(name).register_forward_pre_hook(lambda *_, turn=turn: tell(*next(turn)), prepend=True)


def _asked_about(node: torch.fx.Node, module: torch.nn.Module) -> list[torch.fx.Node]:
    """The inputs of a call whose blocks the layer asks about: the first, and where tensors are lined up, all in blocks."""
    if isinstance(module, Aligned):
        return [arg for arg, P in zip(node.all_input_nodes, module.sources, strict=True) if P is not None]
    return node.all_input_nodes[:1]


def _shape_of(node: torch.fx.Node, model: DistributedModel, shapes: Shapes) -> Shape:
    """Of a node that the conversion has put in, the shape of what it moves; of a sum, that of the sum."""
    if node.name in shapes.nodes:
        return shapes.nodes[node.name]
    shape = _shape_of(node.all_input_nodes[0], model, shapes)
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    if isinstance(module, Summed):
        return tuple(1 if d in module.dims else n for d, n in enumerate(shape))
    return shape
