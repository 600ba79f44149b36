"""Rules for convolutions by function, `F.conv2d` and its like: the layer that they are, with the weights they are given.

The weight may be any parameter of the model, or made of some: it is whole on every worker (`held`), which takes the part
that the layer would hold. So tied weights, weights that the code standardises, and convolutions of one's own work.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ...partition import Partition
from . import layers
from .joining import anything
from .state import OnGrid, State, Whole
from .walk import Node, Walk, given

NAMES = tuple(f"{kind}{d}d" for kind in ("conv", "conv_transpose") for d in (1, 2, 3))
AFTER_BIAS = {
    "conv": ("stride", "padding", "dilation", "groups"),
    "conv_transpose": ("stride", "padding", "output_padding", "groups", "dilation"),
}


class Applied(torch.nn.Module):
    """A layer whose parameters are given at the call."""

    layer: Any

    def __init__(self, template: torch.nn.Module, P: Partition) -> None:
        super().__init__()
        self.__dict__["layer"] = layers.made_like(template, P)  # no child: its parameters are none of the model's
        self.rank = P.transport.rank

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        layer = self.layer
        given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        own = {name: layer._spreads[name].cut(value, self.rank) for name, value in given.items()}
        held = dict(layer._parameters)
        try:
            layer._bucketed = own
            layer._parameters.update(own)  # the layer looks at their devices and whether they need a gradient
            return layer(x)
        finally:
            layer._bucketed = {}
            layer._parameters.update(held)


def convolution(walk: Walk, node: Node, name: str) -> State:
    kind, dims = name[:-2], int(name[-2])
    x, weight, bias = (given(node, i, key) for i, key in enumerate(("input", "weight", "bias")))
    state, like = walk.states.get(x), walk.states.get(weight)
    if not isinstance(state, OnGrid) or not isinstance(like, Whole) or like.like is None:
        return walk.problem(node, f"{name} whose weight is no parameter of the model", anything(walk, node))
    if bias is not None and not isinstance(walk.states[bias], Whole):
        return walk.problem(node, f"{name} whose bias is no parameter of the model", state)
    keys = AFTER_BIAS[kind]
    arguments = {key: given(node, 3 + i, key) for i, key in enumerate(keys)}
    said = {key: value for key, value in arguments.items() if value is not None}
    if any(isinstance(arg, torch.fx.Node) for value in said.values() for arg in _parts(value)):
        return walk.problem(node, f"{name} with arguments that only the call knows", state)
    template = _template(kind, dims, like.like, bias is not None, said)
    if not dims + 1 <= state.dim <= dims + 2:
        return walk.problem(node, f"{name} of a tensor of {state.dim} dims", state)
    P = state.P
    result = OnGrid(P, layers.extents_after(template, state.extents))
    args = (x, weight) if bias is None else (x, weight, bias)
    module = f"_applied_{node.name}"
    walk.modules[module] = (P, lambda: Applied(template, P))
    node.op, node.target, node.args, node.kwargs = "call_module", module, args, {}
    return result


def _template(kind: str, dims: int, weight: Tensor, bias: bool, said: dict[str, Any]) -> torch.nn.Module:
    """The module of torch that has these arguments, without memory."""
    groups = said.get("groups", 1)
    before, after = (weight.shape[1] * groups, weight.shape[0]) if kind == "conv" else (
        weight.shape[0], weight.shape[1] * groups
    )  # fmt: skip
    make = getattr(torch.nn, f"{'Conv' if kind == 'conv' else 'ConvTranspose'}{dims}d")
    known = {key: value for key, value in said.items() if key in inspect.signature(make).parameters}
    plain = {
        key: value[0] if isinstance(value, tuple | list) and len(value) == 1 else value for key, value in known.items()
    }
    return make(before, after, tuple(weight.shape[2:]), bias=bias, device="meta", dtype=weight.dtype, **plain)


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


RULES: dict[str, Any] = dict.fromkeys(NAMES, convolution)
