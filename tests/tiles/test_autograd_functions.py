"""`torch.autograd.Function`s by tiles: forward like any other code, backward as the class says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError

from .equality import check

X = torch.randn(2, 4, 23, 26, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Swish(torch.autograd.Function):
    """Its backward is three times the derivative, so that a derivative of the forward would be found out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return 3 * g * (s * (1 + x * (1 - s)))


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.neg() * ctx.by, None


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class MaskedConv(torch.autograd.Function):
    """Two outputs, one of them saved; a gradient for a parameter; an operator in place; a number that becomes a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, w, padding=1)
        mask = y > 0
        ctx.save_for_backward(x, w, mask, y)
        return y * mask, y.mean((2, 3))

    @staticmethod
    def backward(ctx: Any, g: Tensor, of_mean: Tensor) -> tuple[Tensor, Tensor]:
        x, w, mask, y = ctx.saved_tensors
        g = g * mask + 2 * of_mean[:, :, None, None] / (y.shape[2] * y.shape[3])
        g.mul_(torch.tensor(2.0, dtype=g.dtype))
        of_x = torch.nn.grad.conv2d_input(x.shape, w, g, padding=1)
        return of_x, torch.nn.grad.conv2d_weight(x, w.shape, g, padding=1)


class Doubled(torch.autograd.Function):
    """Changes its argument without saying so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.add_(1) * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 5


class With(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[[With, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.weight, self.function = nn.Parameter(torch.randn(4, 4, 3, 3)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)))


def gated(m: With, x: Tensor) -> Tensor:
    y, mean = MaskedConv.apply(x, m.weight)
    return y * mean[:, :, None, None]


CASES: dict[str, Callable[[With, Tensor], Tensor]] = {
    "saves its input": lambda m, x: Swish.apply(x),
    "returns its input": lambda m, x: Reversed.apply(x, 0.3) + x,
    "returns its cotangent": lambda m, x: Rounded.apply(x),
    "two outputs": gated,
    "one output of two is used": lambda m, x: MaskedConv.apply(x, m.weight)[1][:, :, None, None] * x,
    "of parameters": lambda m, x: F.conv2d(x, Rounded.apply(m.weight) + Swish.apply(m.weight)),
    "in a checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(Swish.apply, x, use_reentrant=False),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_that_the_class_says(name: str) -> None:
    torch.manual_seed(0)
    check(With(CASES[name]).double(), X)


def test_within_a_limit_the_backward_is_cut_too() -> None:
    check(With(CASES["saves its input"]).double(), X, memory="200KiB")


def test_without_gradients_or_into_an_array() -> None:
    model = With(gated).double()
    check(model, X, gradients=False)
    target = torch.empty(2, 4, 23, 26, dtype=torch.float64)
    gridwise.tiled(model, tile=7)(X, out=target)
    torch.testing.assert_close(target, model(X))


def test_one_that_changes_its_argument_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Doubled has a backward of its own, and changes an argument"):
        gridwise.tiled(With(lambda m, x: Doubled.apply(x * 1)).double(), tile=7)(X.clone().requires_grad_())
