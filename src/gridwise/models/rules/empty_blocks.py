"""What autograd sees of a worker whose block is empty, or that needs nothing of a tensor: it enters all adjoints too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...nn.engine.operator import prepare, saving_node
from ...operators.call import LocalFunction


def of_nothing(tensors: Sequence[Any], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty block that depends on `tensors`, so that this worker takes part in their adjoints like the others."""
    tensors = [x for x in tensors if isinstance(x, Tensor)]  # the first may be a stream of random numbers
    wanted = [x for x in tensors if x.requires_grad]
    if not wanted or not (dtype.is_floating_point or dtype.is_complex):
        return torch.empty(shape, dtype=dtype, device=tensors[0].device if tensors else None)
    total = sum((x.sum() if dtype.is_complex or not x.is_complex() else x.abs().sum()) for x in wanted)
    return saving_node(total.to(dtype)).expand(shape)


class Reaching:
    """A function whose output depends, for autograd, on all tensors that need a gradient.

    On some workers, a box may need nothing of a tensor. In backward, all workers enter the adjoint of its movement.
    """

    def __init__(self, run: LocalFunction) -> None:
        self.run = run
        self.missed: dict[tuple[int, ...], list[int]] = {}
        """Which tensors the output does not depend on, by those that need a gradient; found out in the first call."""

    def __call__(self, *given: Any) -> Any:
        made = self.run(*given)
        if not torch.is_grad_enabled():
            return made
        y, *rest = made if isinstance(made, tuple | list) else (made,)
        wanted = tuple(i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad)
        if wanted and wanted not in self.missed:
            self.missed[wanted] = _missed(y, given, wanted) if y.is_floating_point() or y.is_complex() else []
        missed = self.missed[wanted] if wanted else []
        if missed:
            y = _Reached.apply(y, *(given[i] for i in missed))
        return (y, *rest) if isinstance(made, tuple | list) else y


def _missed(y: Tensor, given: Sequence[Any], among: Sequence[int]) -> list[int]:
    nodes = {torch.autograd.graph.get_gradient_edge(given[i]).node: i for i in among}
    found, seen = list[Any](), set[Any]()
    if y.requires_grad:
        found.append(torch.autograd.graph.get_gradient_edge(y).node)
    while found:
        node = found.pop()
        if node not in seen:
            seen.add(node)
            found += [] if node in nodes else [each for each, _ in node.next_functions if each is not None]
    return [i for node, i in nodes.items() if node not in seen]


class _Reached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, *given: Tensor) -> Tensor:
        ctx.shapes = [(x.shape, x.dtype) for x in given]
        prepare(ctx)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        _ = ctx.saved_tensors
        return gradient, *(gradient.new_zeros((), dtype=dtype).expand(shape) for shape, dtype in ctx.shapes)
