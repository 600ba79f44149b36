"""What the pretended workers of a plan are told: the global shape of every tensor in a model's graph, from its rehearsal.

A distributed layer asks the others how its input is cut. On a transport that counts nobody answers, but inside a
converted model every tensor lies in balanced blocks, so that its global shape is all there is to know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import cycle

import torch

from ..nn.conversion.model import DistributedModel
from ..nn.conversion.moves import Aligned, Summed
from ..nn.conversion.rehearsal import Shape, Shapes


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
