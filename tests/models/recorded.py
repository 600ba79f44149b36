"""A model whose code is any function, and what it has to equal: shared by the tests of recording."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

import gridwise


class Schedule:
    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self) -> float:
        return self.scale


class Config:
    def __init__(self) -> None:
        self.calls, self.scale, self.schedule = 0, 2.0, Schedule()


class Of(nn.Module):
    """A convolution, and then a function of the module and of what it gives."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function, self.conv, self.norm = function, nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.n, self.cache, self.table, self.config = 0, None, [0, 0], Config()
        self.filled: dict[str, Any] = {}
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.conv(x))


def partition() -> Any:
    return gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])


def distributed(function: Callable[[Any, Tensor], Any]) -> tuple[Any, nn.Module, Tensor]:
    torch.manual_seed(0)
    sequential = Of(function).double()
    return (
        gridwise.distribute(copy.deepcopy(sequential), partition()),
        sequential,
        torch.randn(2, 3, 8, 8, dtype=torch.float64),
    )


def check(model: nn.Module, sequential: nn.Module, x: Tensor, calls: int = 2) -> None:
    """Outputs, gradients and buffers of some calls are the same."""
    for _ in range(calls):
        mine, other = (x.clone().requires_grad_() for _ in range(2))
        model.zero_grad()
        sequential.zero_grad()
        y, expected = model(mine), sequential(other)
        torch.testing.assert_close(y, expected)
        if expected.requires_grad:
            expected.square().sum().backward()
            y.square().sum().backward()
            torch.testing.assert_close(mine.grad, other.grad)
            for own, whole in zip(model.parameters(), sequential.parameters(), strict=True):
                torch.testing.assert_close(own.grad, whole.grad)
    for own, buffer in zip(model.buffers(), sequential.buffers(), strict=True):
        torch.testing.assert_close(own, buffer)


class Scaled(torch.autograd.Function):
    """Twice the tensor, with a hundred times the tensor as the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 50 * ctx.factor * gradient * x, None


scale = Scaled.apply


def under(make: Callable[[], AbstractContextManager[Any]]) -> Callable[[Any, Tensor], Tensor]:
    def function(m: Any, y: Tensor) -> Tensor:
        with make():
            z = m.norm(y)
        return y * z

    return function
