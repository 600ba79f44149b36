"""Is a placed model the sequential one: outputs, gradients of inputs and parameters, buffers?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import gridwise
from gridwise.grid import Grid, Layout
from gridwise.models.placement import Cut
from gridwise.models.placing import place
from gridwise.models.random import sequential_random
from gridwise.models.recording.containers import flatten
from gridwise.models.recording.record import Like, record


def recorded(model: Any, inputs: Sequence[Tensor]) -> Any:
    likes = [Like(tuple(x.shape), x.dtype, x.device, x.requires_grad) for x in inputs]
    _, tree = flatten((tuple(inputs), {}))
    roots = {"": model} if isinstance(model, torch.nn.Module) else {}
    return record(model, roots, likes, tree, type(model).__name__)


def compare(
    model: torch.nn.Module,
    inputs: Sequence[Tensor],
    shape: Sequence[int],
    layouts: Sequence[Layout | None] | None = None,
    backward: bool = True,
    gather: Any = "report",
) -> tuple[dict[str, float], Any]:
    """The largest relative difference of each thing that a model makes, and the program."""
    P = gridwise.world().create_cartesian_topology_partition(shape)
    twin = copy.deepcopy(model)
    wholes = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    torch.manual_seed(7)
    expected = flatten(model(*wholes))[0]
    cotangents = [torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(i)) for i, y in enumerate(expected)]
    wanted = [(y, g) for y, g in zip(expected, cotangents, strict=True) if y.requires_grad]
    if backward and wanted:
        torch.autograd.backward([y for y, _ in wanted], [g for _, g in wanted])
    if layouts is None:
        layouts = [_layout(P.grid, x) for x in inputs]
    recording = recorded(twin, [x.detach().requires_grad_(x.requires_grad) for x in inputs])
    program = place(recording, layouts, P, gather)
    rank = P.transport.rank
    blocks = []
    for x, layout in zip(inputs, layouts, strict=True):
        part = x.detach() if layout is None else x.detach()[layout.block(rank).slices]
        blocks.append(part.clone().requires_grad_(x.requires_grad))
    names = {source.name: source.kind for _, source in program.sources}
    held = {**dict(twin.named_parameters(remove_duplicate=False)), **dict(twin.named_buffers(remove_duplicate=False))}
    torch.manual_seed(7)
    with sequential_random():
        got = program({k: v for k, v in held.items() if names.get(k) == "parameter"}, {k: v for k, v in held.items() if names.get(k) == "buffer"}, blocks)
    errors: dict[str, float] = {}
    parts = []
    for i, (y, whole, placed) in enumerate(zip(got, expected, program.outputs, strict=True)):
        box = placed.layout.block(rank).slices if isinstance(placed, Cut) else ...
        errors[f"output {i}"] = _error(y, whole.detach()[box], whole)
        if whole.requires_grad:
            parts.append((y, cotangents[i][box]))
    if backward and parts:
        torch.autograd.backward([y for y, _ in parts], [g for _, g in parts])
        for i, (x, whole, layout) in enumerate(zip(blocks, wholes, layouts, strict=True)):
            if whole.requires_grad:
                box = ... if layout is None else layout.block(rank).slices
                errors[f"gradient of input {i}"] = _error(x.grad, None if whole.grad is None else whole.grad[box], whole.grad)
        theirs = dict(model.named_parameters())
        for name, p in twin.named_parameters():
            if theirs[name].grad is not None or p.grad is not None:
                errors[f"gradient of {name}"] = _error(p.grad, theirs[name].grad, theirs[name].grad)
    theirs = dict(model.named_buffers())
    for name, b in twin.named_buffers():
        errors[f"buffer {name}"] = _error(b, theirs[name], theirs[name])
    return errors, program


def _layout(grid: Grid, x: Tensor) -> Layout | None:
    if x.dim() == grid.dim:
        return Layout.balanced(grid, x.shape)
    return None


def _error(got: Tensor | None, expected: Tensor | None, whole: Tensor | None) -> float:
    if expected is None or got is None:
        missing = expected if got is None else got
        return 0.0 if missing is None or not missing.numel() or not missing.detach().abs().max() else float("inf")
    if got.shape != expected.shape:
        return float("inf")
    if not got.numel():
        return 0.0
    if not got.dtype.is_floating_point and not got.dtype.is_complex:
        return float((got.detach() != expected).sum())
    assert whole is not None
    scale = max(1.0, float(whole.detach().abs().max()))
    gap = (got.detach() - expected).abs().nan_to_num(0.0).max() / scale
    same_nan = bool((got.isnan() == expected.isnan()).all())
    return float(gap) if same_nan else float("inf")


Make = Callable[[], torch.nn.Module]
