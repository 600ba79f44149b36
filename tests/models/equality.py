"""Is a placed model the sequential one: outputs, gradients of inputs and parameters, buffers?"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import gridwise
from gridwise.comm.transports.base import Transport
from gridwise.grid import Grid, Layout
from gridwise.models.placement import Cut
from gridwise.models.placing import place
from gridwise.models.program import Program
from gridwise.models.random import sequential_random
from gridwise.models.recording.containers import flatten
from gridwise.models.recording.record import record
from gridwise.models.recording.tracing import InputSpec
from gridwise.nn.engine.agreement import agreement
from gridwise.partition import CartesianPartition

from .threads import on_threads

Errors = dict[str, float]
"""The largest difference of each thing that a model makes, relative to the largest number in it, or to 1."""


def recorded(model: Any, inputs: Sequence[Tensor]) -> Any:
    likes = [InputSpec(tuple(x.shape), x.dtype, x.device, x.requires_grad) for x in inputs]
    _, tree = flatten((tuple(inputs), {}))
    roots = {"": model} if isinstance(model, torch.nn.Module) else {}
    return record(model, roots, likes, tree, type(model).__name__)


@dataclass
class Expected:
    """What the sequential model makes, and its recording."""

    model: torch.nn.Module
    inputs: Sequence[Tensor]
    backward: bool = True
    outputs: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.twin = copy.deepcopy(self.model)
        self.wholes = [x.detach().clone().requires_grad_(x.requires_grad) for x in self.inputs]
        torch.manual_seed(7)
        self.outputs = flatten(self.model(*self.wholes))[0]
        self.cotangents = [
            torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(i))
            if y.requires_grad
            else torch.empty(0)
            for i, y in enumerate(self.outputs)
        ]
        wanted = [(y, g) for y, g in zip(self.outputs, self.cotangents, strict=True) if y.requires_grad]
        if self.backward and wanted:
            torch.autograd.backward([y for y, _ in wanted], [g for _, g in wanted])
        self.recording = recorded(
            copy.deepcopy(self.twin), [x.detach().requires_grad_(x.requires_grad) for x in self.inputs]
        )

    def compare(
        self,
        transport: Transport,
        shape: Sequence[int],
        layouts: Sequence[Layout | None] | None,
        gather: Any = "report",
    ) -> tuple[Errors, Program]:
        """On one worker of a grid of this shape, all of whom enter."""
        P = CartesianPartition(transport, Grid(tuple(range(transport.size)), tuple(shape)))
        layouts = layouts or [Layout.balanced(P.geometry, x.shape) if x.dim() == P.dim else None for x in self.inputs]
        program, model, rank = place(self.recording, layouts, P, gather), copy.deepcopy(self.twin), transport.rank
        blocks = [
            x.detach()[... if layout is None else layout.block(rank).slices].clone().requires_grad_(x.requires_grad)
            for x, layout in zip(self.inputs, layouts, strict=True)
        ]
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        with sequential_random(torch.Generator().manual_seed(7)):
            got = program(parameters, {**buffers, **parameters}, blocks)
        errors: Errors = {}
        parts = []
        for i, (y, whole, placed) in enumerate(zip(got, self.outputs, program.outputs, strict=True)):
            box = placed.layout.block(rank).slices if isinstance(placed, Cut) else ...
            errors[f"output {i}"] = difference(y, whole.detach()[box], whole)
            if whole.requires_grad != y.requires_grad:
                errors[f"requires_grad of output {i}"] = 1.0
            if whole.requires_grad:
                parts.append((y, self.cotangents[i][box]))
        if self.backward and parts:
            torch.autograd.backward([y for y, _ in parts], [g for _, g in parts])
            for i, (x, whole, layout) in enumerate(zip(blocks, self.wholes, layouts, strict=True)):
                if whole.requires_grad:
                    box = ... if layout is None else layout.block(rank).slices
                    expected = None if whole.grad is None else whole.grad[box]
                    errors[f"gradient of input {i}"] = difference(x.grad, expected, whole.grad)
            for name, p in self.model.named_parameters():
                errors[f"gradient of {name}"] = difference(parameters[name].grad, p.grad, p.grad)
        for name, b in self.model.named_buffers():
            errors[f"buffer {name}"] = difference(buffers[name], b, b)
        return errors, program


def compare(
    model: torch.nn.Module,
    inputs: Sequence[Tensor],
    shape: Sequence[int],
    layouts: Sequence[Layout | None] | None = None,
    backward: bool = True,
    gather: Any = "report",
) -> tuple[Errors, Program]:
    """On the workers of the world."""
    return Expected(model, inputs, backward).compare(gridwise.world().transport, shape, layouts, gather)


def compare_on_threads(
    model: torch.nn.Module,
    inputs: Sequence[Tensor],
    shape: Sequence[int],
    layouts: Sequence[Layout | None] | None = None,
    backward: bool = True,
    gather: Any = "report",
    expected: Expected | None = None,
) -> tuple[Errors, Program]:
    """On workers that are threads: the largest differences of any of them."""
    size = 1
    for extent in shape:
        size *= extent
    with agreement(False):
        expected = expected or Expected(model, inputs, backward)
        found = on_threads(size, lambda transport: expected.compare(transport, shape, layouts, gather))
    errors: Errors = {}
    for each, _ in found:
        for name, error in each.items():
            errors[name] = max(error, errors.get(name, 0.0))
    return errors, found[0][1]


def difference(got: Tensor | None, expected: Tensor | None, whole: Tensor | None) -> float:
    if expected is None or got is None:
        missing = expected if got is None else got
        return 0.0 if missing is None or not missing.numel() or not missing.detach().abs().max() else float("inf")
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if not got.numel():
        return 0.0
    if not got.dtype.is_floating_point and not got.dtype.is_complex:
        return float((got.detach() != expected).sum())
    assert whole is not None
    scale = max(1.0, float(whole.detach().abs().max()))
    gap = (got.detach() - expected).abs().nan_to_num(0.0).max() / scale
    return float(gap) if bool((got.isnan() == expected.isnan()).all()) else float("inf")
