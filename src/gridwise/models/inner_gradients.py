"""Gradients that a model asks for itself, on blocks: autograd runs on this worker's tensors, and so through all movements.

Cotangents are placed as in `placement`, so the gradient of a replicated tensor is a partial sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node

from .autograd_functions import as_cotangent, cotangent_of
from .placement import Cut, Replicated
from .recording.gradients import gradients, requiring_grad
from .recording.recording import where
from .rules import NoRule
from .tape import Item

if TYPE_CHECKING:
    from .placing import Placing

NODES = (gradients, requiring_grad)


class Differentiation:
    """``gradients`` as a step, which is never compiled: it takes the outputs, then the inputs, then the cotangents."""

    def __init__(self, outputs: int, inputs: int, creates_graph: bool) -> None:
        self.ends = outputs, outputs + inputs
        self.creates_graph = creates_graph

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        first, second = self.ends
        return gradients(tensors[:first], tensors[first:second], tensors[second:], self.creates_graph)


def place_gradients(placing: Placing, node: Node) -> list[Item]:
    """Add the steps of such a node to the tape; what they make."""
    tape, whole = placing.tape, placing.workers.size == 1
    if node.target is requiring_grad:
        return [_requiring(placing, node)]
    arguments: Any = node.args
    ys, xs, given, creates_graph = arguments
    outputs, inputs = [[placing.item(each) for each in nodes] for nodes in (ys, xs)]
    cotangents = []
    for y, g in zip(outputs, given, strict=True):
        if g is None:
            placement = y.value.placement if isinstance(y.value.placement, Cut) else Replicated()
            (item,) = tape.add(torch.ones_like, [y], replace(y.value, placement=placement, order=()))
        else:
            item = placing.item(g)
        cotangents.append(as_cotangent(tape, item, y.value, where(node)))
    values = [
        replace(x.value, placement=Replicated() if whole else cotangent_of(x.value.placement), order=()) for x in inputs
    ]
    run = Differentiation(len(outputs), len(inputs), bool(creates_graph))
    return tape.add(run, [*outputs, *inputs, *cotangents], values)


def _requiring(placing: Placing, node: Node) -> Item:
    (x,) = node.all_input_nodes
    base = placing.aliases.same(x)
    if base.op == "placeholder" and (base.name not in placing.sources or placing.sources[base.name].kind != "input"):
        raise NoRule("it makes a parameter or buffer need a gradient; do that around the call")
    item = placing.item(x)
    return placing.tape.add(requiring_grad, [item], item.value)[0]
