"""Gradients that the model's code asks for itself (``torch.autograd.grad``), as nodes of the recording.

The graph has one node for each request, not the operators of a backward: on blocks autograd runs again, through the
adjoints of all movements, so that nothing needs a rule, and what is asked for with `create_graph` can be differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...torch_internals.tracer import TracedTensor, noted_call, untraced


def requiring_grad(x: Tensor) -> Tensor:
    """``x.requires_grad_()``, as a node of a recording."""
    return x if x.requires_grad else x.requires_grad_()


def gradients(
    ys: Sequence[Tensor], xs: Sequence[Tensor], cotangents: Sequence[Tensor | None], creates_graph: bool
) -> list[Tensor]:
    """``torch.autograd.grad(ys, xs, cotangents)``, as a node of a recording; zeros for tensors that have none here."""
    pairs = [(y, g) for y, g in zip(ys, cotangents, strict=True) if y.requires_grad]
    wanted = [x for x in xs if x.requires_grad]
    found = iter(
        torch.autograd.grad(
            [y for y, _ in pairs],
            wanted,
            [g for _, g in pairs],
            retain_graph=True,
            create_graph=creates_graph,
            allow_unused=True,
            materialize_grads=True,
        )
        if pairs and wanted
        else [torch.zeros_like(x) for x in wanted]
    )
    return [next(found) if x.requires_grad else torch.zeros_like(x) for x in xs]


def note_requires_grad(x: Tensor, needed: bool = True) -> Tensor:
    """Replaces `Tensor.requires_grad_` while a model is recorded."""
    was_needed = x.requires_grad
    x.requires_grad_(needed)
    if x.requires_grad and not was_needed and isinstance(x, TracedTensor):
        noted_call(requiring_grad, (x,), x)
    return x


def note_gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    **rest: Any,
) -> Any:
    """Replaces `torch.autograd.grad` while a model is recorded: the gradients of fakes, and the node."""
    with untraced():
        found = torch.autograd.grad(outputs, inputs, grad_outputs, True, create_graph, **rest)
        keys = list(inputs) if isinstance(inputs, dict) else range(len(found))
        made = {key: found[key].clone() for key in keys if found[key] is not None}  # other memory than anything else
    ys, cotangents = _listed(outputs), _listed(grad_outputs)
    xs = inputs if isinstance(inputs, dict) else _listed(inputs)
    cotangents = cotangents if grad_outputs is not None else [None] * len(ys)
    noted_call(gradients, (ys, [xs[key] for key in made], cotangents, create_graph), list(made.values()))
    return {key: made.get(key) for key in keys} if isinstance(inputs, dict) else tuple([made.get(key) for key in keys])


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, Tensor) or tensors is None else list(tensors)
