"""Gradients of gradients on workers that are threads, as DistConv's tests take them: of the mean of the input's gradient."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from tests.models import threads as workers
from torch import Tensor

from gridwise.errors import GridwiseError
from gridwise.grid import Grid
from gridwise.models import placing
from gridwise.nn.engine.agreement import agreement
from gridwise.partition import CartesianPartition

from .findings import Finding
from .on_threads import EXACT, difference, reason_of, recorded
from .samples import Sample, Way


def check_twice(sample: Sample, way: Way, with_output: bool) -> Finding:
    """What came of the gradients of a loss that has the gradient of the input in it, and maybe the output."""
    try:
        recording = recorded(sample)
        whole = [x.detach().clone().requires_grad_() for x in sample.tensors]
        expected = gradients(whole, sample.call(*whole), whole[0].numel(), with_output)
        size = 2 ** sum(extent > 1 for extent in way.shape)

        def on_worker(transport: Any) -> float:
            torch.set_num_threads(1)
            grid = Grid(tuple(range(size)), way.shape)
            layout = way.layout(sample.tensors[0].shape)
            layouts = [layout, *(None for _ in sample.tensors[1:])]
            program = placing.place(recording, layouts, CartesianPartition(transport, grid))
            box = layout.block(transport.rank).slices
            own = [x.detach()[box if i == 0 else ...].clone().requires_grad_() for i, x in enumerate(sample.tensors)]
            (y,) = program({}, {}, own)
            found = gradients(own, y, sample.tensors[0].numel(), with_output)
            return max(
                difference(x, w, box if i == 0 else ...) for i, (x, w) in enumerate(zip(found, expected, strict=True))
            )

        with agreement(False), patch.object(placing, "SMALL", 0):
            error = max(workers.on_threads(size, on_worker))
    except GridwiseError as raised:
        return Finding("", sample.operator, "refused", text=reason_of(raised))
    except Exception as raised:
        return Finding("", sample.operator, "wrong", text=f"{type(raised).__name__}: {raised}")
    if error > EXACT:
        return Finding("", sample.operator, "wrong", error, f"a gradient of the second order: {error:.1e}")
    return Finding("", sample.operator, "equal", error)


def gradients(tensors: list[Tensor], y: Tensor, count: int, with_output: bool) -> list[Tensor]:
    """Of the mean of squares of the input's gradient, and the sum of squares of the output: parts of a sum over workers.

    DistConv's own loss is the mean of the gradient itself, which is linear in the input: its gradient there is zero. Squares
    have one everywhere.
    """
    (first,) = torch.autograd.grad((y * y).sum(), tensors[0], create_graph=True)
    loss = first.square().sum() / count
    if with_output:
        loss = loss + y.square().sum()
    return list(torch.autograd.grad(loss, tensors))
