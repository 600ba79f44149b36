"""Gradients that the model's code asks for itself: equal to the sequential model's, on blocks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.testing import workers

from .equality import compare_on_threads
from .of_functions import Of


def penalty(m: Any, x: Tensor) -> Tensor:
    """A gradient penalty: the second derivative reaches the parameters."""
    (g,) = torch.autograd.grad(m.norm(m.net(x)).sigmoid().sum(), x, create_graph=True)
    return (g.flatten(1).norm(dim=1) - 1).square().mean()


def interpolated(m: Any, x: Tensor) -> Tensor:
    between = (0.3 * x + 0.7 * x.flip(0)).requires_grad_(True)
    y = m.net(between)
    (g,) = torch.autograd.grad(
        outputs=y, inputs=between, grad_outputs=torch.ones_like(y), create_graph=True, retain_graph=True
    )
    return m.net(x).mean() + 10 * g.square().mean()


def physics(m: Any, x: Tensor) -> Tensor:
    """The residual of an equation with second derivatives."""
    x = x.detach().clone()
    x.requires_grad = True
    u = torch.tanh(m.net(x))
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    return (second + u.mean(1, keepdim=True).sin()).square().mean() + first.amax(2).sum()


def of_parameters(m: Any, x: Tensor) -> Tensor:
    """One step of an inner optimiser, through which the outer gradient goes."""
    y = F.conv2d(x, m.weight)
    (g,) = torch.autograd.grad(y.square().mean(), [m.weight], create_graph=True)
    return F.conv2d(x, m.weight - 0.5 * g).sin()


def some_unused(m: Any, x: Tensor) -> Tensor:
    ends, given = (m.net(x).sum(), x.exp().mean()), {"x": x, "unused": m.weight}
    try:
        found = torch.autograd.grad(ends, given, create_graph=True, allow_unused=True)
    except RuntimeError:  # torch 2.11 takes no dicts
        grads = torch.autograd.grad(ends, list(given.values()), create_graph=True, allow_unused=True)
        found = dict(zip(given, grads, strict=True))
    assert found["unused"] is None
    return found["x"] * x


def without_a_graph(m: Any, x: Tensor) -> Tensor:
    """Guided by a gradient that is itself a constant."""
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(m.net(z).log_softmax(1)[:, 0].sum(), z)
    return m.net(x) + g


def in_checkpoints(m: Any, x: Tensor) -> Tensor:
    y = checkpoint(m.net, x, use_reentrant=False)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return g * x


CASES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "penalty": penalty, "interpolated": interpolated, "physics": physics, "of parameters": of_parameters,
    "some unused": some_unused, "without a graph": without_a_graph, "in checkpoints": in_checkpoints,
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 4, 1))
    model = Of(CASES[name], net=net, norm=nn.BatchNorm2d(4), weight=torch.randn(4, 4, 1, 1)).double()
    return model, torch.randn(4, 4, 6, 5, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 2, 1), (2, 1, 1, 2)])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_sequential(name: str, grid: tuple[int, ...]) -> None:
    model, x = made(name)
    errors, _ = compare_on_threads(model, [x], grid)
    assert max(errors.values()) < 1e-9, errors


@workers(2)
def test_training_with_a_penalty() -> None:
    """Through `distribute`: a loss with a penalty, its gradients, and the same at the second call."""
    model, x = made("interpolated")
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    distributed, block = gridwise.distribute(copy.deepcopy(model), P_x), x.detach()[gridwise.local_slice(P_x, x.shape)]
    for _ in range(2):
        model(x.detach()).backward()
        loss = distributed(block)
        loss.backward()
        torch.testing.assert_close(loss, model(x.detach()))
        for own, whole in zip(distributed.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(own.grad, whole.grad)
            if whole.grad is not None:
                own.grad = whole.grad = None


class Old(torch.autograd.Function):
    """Written for the torch of long ago."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_variables
        return 3 * gradient * x


@pytest.mark.filterwarnings("ignore:'saved_variables' is deprecated")
def test_saved_variables() -> None:
    errors, _ = compare_on_threads(Of(lambda m, x: Old.apply(x) * x), [made("penalty")[1]], (1, 1, 2, 1))
    assert max(errors.values()) < 1e-9, errors


def backward_within(m: Any, x: Tensor) -> Tensor:
    m.net(x).sum().backward()
    return x


def batched(m: Any, x: Tensor) -> Tensor:
    y = m.net(x)
    return torch.autograd.grad(y, x, torch.ones(2, *y.shape, dtype=y.dtype), is_grads_batched=True)[0]


def of_a_frozen_parameter(m: Any, x: Tensor) -> Tensor:
    m.weight.requires_grad_()
    return F.conv2d(x, m.weight)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (backward_within, "backward() would be lost"),
        (batched, "is_grads_batched"),
        (of_a_frozen_parameter, "makes a parameter or buffer need a gradient"),
    ],
)
def test_refused(function: Callable[[Any, Tensor], Tensor], words: str) -> None:
    model, x = made("penalty")
    model.function, model.weight.requires_grad = function, False
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    with pytest.raises(UnsupportedError) as found:
        gridwise.distribute(model, P_x)(x)
    assert words in str(found.value)
    assert ".py:" in str(found.value)


def test_tiled_refuses_them() -> None:
    model, x = made("penalty")
    with pytest.raises(UnsupportedError, match="asks for gradients itself"):
        gridwise.tiled(model, memory="64 MiB")(x)
