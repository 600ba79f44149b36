"""What all tests of tiles share: a model by tiles beside the model itself, forward and backward, buffers included."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

import gridwise
from gridwise.models.recording.containers import flatten


def check(model: Any, *inputs: Tensor, tolerance: float = 1e-9, gradients: bool = True, **limits: Any) -> Any:
    """Compare outputs, gradients of inputs and parameters, and buffers; the tiled model."""
    twin = copy.deepcopy(model)
    limits = limits or {"tile": (7, 6)}
    big = gridwise.tiled(model, **limits)
    ours = [_leaf(x, gradients) for x in inputs]
    theirs = [_leaf(x, gradients) for x in inputs]
    with torch.set_grad_enabled(gradients):
        made, expected = flatten(big(*ours))[0], flatten(twin(*theirs))[0]
    assert len(made) == len(expected)
    for y, z in zip(made, expected, strict=True):
        same(y, z, tolerance)
    if gradients:
        for results in (made, expected):
            ends = [y for y in results if y.requires_grad]
            torch.autograd.backward(ends, [cotangent(y) for y in ends])
        for x, z in zip(ours, theirs, strict=True):
            same(x.grad, z.grad, tolerance)
        if isinstance(model, torch.nn.Module):
            for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                same(p.grad, q.grad, tolerance)
    if isinstance(model, torch.nn.Module):
        for p, q in zip(model.buffers(), twin.buffers(), strict=True):
            same(p, q, tolerance)
    return big


def _leaf(x: Tensor, gradients: bool) -> Tensor:
    return x.clone().requires_grad_(gradients and x.is_floating_point())


def cotangent(y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)


def same(a: Tensor | None, b: Tensor | None, tolerance: float) -> None:
    if a is None or b is None:
        assert a is None or not a.any()
        assert b is None or not b.any()
        return
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    scale = max(1.0, b.detach().abs().max().item()) if b.numel() and b.is_floating_point() else 1.0
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
