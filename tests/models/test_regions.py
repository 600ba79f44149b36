"""Parts of a model that run as one: checkpoints, Functions with a backward of their own, no_grad and autocast."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gridwise.models.autograd_functions import PlacedFunction
from gridwise.models.program import Checkpoint
from gridwise.testing import workers

from .equality import compare, compare_on_threads


class Odd(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w.sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * 100 * w.sum(), (g * x).sum().expand_as(w) * 3


def copied(kind: type[torch.autograd.Function]) -> Any:
    """`apply` of a Function as it arrives in another process if it was pickled by value."""
    here = sys.modules[kind.__module__]
    cloudpickle.register_pickle_by_value(here)
    try:
        return pickle.loads(cloudpickle.dumps(kind.apply))
    finally:
        cloudpickle.unregister_pickle_by_value(here)


class Net(nn.Module):
    def __init__(self, middle: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.middle = middle
        self.c, self.bn, self.d = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.w, self.l = nn.Parameter(torch.randn(2)), nn.Linear(4, 3)
        self.double()

    def part(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.d(x)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.middle(self, self.c(x))
        return self.l(F.adaptive_avg_pool2d(x, 1).flatten(1)), x


def once(m: Any, x: Tensor) -> Tensor:
    return checkpoint(m.part, x, use_reentrant=False) + x


def nested(m: Any, x: Tensor) -> Tensor:
    inner = lambda y: checkpoint(m.part, y, use_reentrant=False).sin()  # noqa: E731
    return checkpoint(inner, x, use_reentrant=False) + x


def dropping(m: Any, x: Tensor) -> Tensor:
    return checkpoint(lambda y: F.dropout(m.part(y), 0.3, True), x, use_reentrant=False)


def function(m: Any, x: Tensor) -> Tensor:
    return Odd.apply(x, m.w)


def function_of_replicated(m: Any, x: Tensor) -> Tensor:
    return x * Odd.apply(x.mean((2, 3), keepdim=True), m.w)


def function_in_checkpoint(m: Any, x: Tensor) -> Tensor:
    return checkpoint(lambda y: Odd.apply(m.part(y), m.w), x, use_reentrant=False)


class Apart(torch.autograd.Function):
    """Its context is set up apart from its forward, which has a default; one of three outputs has no gradient."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, factor: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
        return x.sin(), x * w.sum() * factor, x.argmax(1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, ctx.factor = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor, _: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return 5 * g + ctx.factor * h, 2 * (h * x).sum().expand_as(w), None


class Derived(Odd):
    """Inherits a backward, and calls the forward that it replaces."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        return super(Derived, Derived).forward(ctx, x, w) + Odd.forward(ctx, x, w)


class Ranks(torch.autograd.Function):
    """Nothing that it returns has a gradient, and it has no backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.argmax(1, keepdim=True)
        ctx.mark_non_differentiable(y)
        return y


def function_set_up_apart(m: Any, x: Tensor) -> Tensor:
    apply = Apart.apply
    y, z, ranks = apply(x, m.w)
    return y * ranks + z * apply(x, m.w, 2.0)[1]


def function_derived(m: Any, x: Tensor) -> Tensor:
    return Derived.apply(x, m.w)


def function_without_gradient(m: Any, x: Tensor) -> Tensor:
    return Ranks.apply(x) * Odd.apply(x, m.w)


def function_made_by_the_model(m: Any, x: Tensor) -> Tensor:
    class Made(Odd):
        pass

    return Made.apply(x, m.w)


def function_copied(m: Any, x: Tensor) -> Tensor:
    return copied(Odd)(x, m.w)


class Failing(Odd):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        raise RuntimeError("no kernel for this")


def function_after_one_that_fails(m: Any, x: Tensor) -> Tensor:
    def either(y: Tensor) -> Tensor:
        try:
            return Failing.apply(y, m.w)
        except RuntimeError:
            return Odd.apply(y, m.w)

    return checkpoint(either, x, use_reentrant=False).sin()


def without_gradient(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        mean = x.mean((2, 3), keepdim=True)
    return x - mean


def test_in_half_precision() -> None:
    def half(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.conv2d(x.float(), m.d.weight.float(), m.d.bias.float(), padding=1)
        assert y.dtype == torch.bfloat16
        return y.double()

    x = torch.randn(2, 3, 6, 8, dtype=torch.float64, requires_grad=True)
    errors, _ = compare_on_threads(Net(half), [x], (1, 1, 2, 2))
    assert max(errors.values()) < 2e-2


@pytest.mark.parametrize(
    ("middle", "kind"),
    [
        (once, Checkpoint),
        (nested, Checkpoint),
        (dropping, Checkpoint),
        (function, PlacedFunction),
        (function_of_replicated, PlacedFunction),
        (function_in_checkpoint, Checkpoint),
        (function_set_up_apart, PlacedFunction),
        (function_derived, PlacedFunction),
        (function_without_gradient, PlacedFunction),
        (function_made_by_the_model, PlacedFunction),
        (function_copied, PlacedFunction),
        (function_after_one_that_fails, Checkpoint),
        (without_gradient, None),
    ],
)
def test_regions_equal_the_sequential_ones(middle: Any, kind: Any) -> None:
    x = torch.randn(2, 3, 6, 8, dtype=torch.float64, requires_grad=True)
    for grid in ((1, 1, 2, 2), (4, 1, 1, 1), (1, 1, 3, 1)):
        errors, program = compare_on_threads(Net(middle), [x], grid)
        assert max(errors.values()) < 1e-10, grid
        assert kind is None or any(isinstance(step.run, kind) for step in program.steps)


@workers(4, transports=["mpi"])
def test_recomputed_halos_meet_on_real_workers() -> None:
    """Also where some workers have nothing to recompute: two rows on a grid of four."""
    x = torch.randn(2, 3, 2, 6, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(1))
    for middle in (once, nested, function_in_checkpoint):
        errors, _ = compare(Net(middle), [x], (1, 1, 4, 1))
        assert max(errors.values()) < 1e-10
