"""Functions of autograd are noted in every call: looked up now or before, inherited, or with a context set up apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from gridwise.torch_internals.functions import functions_noted


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Apart(Twice):
    @staticmethod
    def forward(x: Tensor, factor: float = 3.0) -> Tensor:
        return factor * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.inputs = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.inputs[1] * gradient, None


class Inheriting(Twice):
    pass


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], list[str], float]] = {
    "looked up": (lambda x: Twice.apply(x), ["Twice.forward"], 2.0),
    "bound before": (Twice.apply, ["Twice.forward"], 2.0),
    "inherited": (Inheriting.apply, ["Inheriting.forward"], 2.0),
    "set up apart": (Apart.apply, ["Apart.forward", "Apart.setup_context"], 3.0),
    "with another argument": (lambda x: Apart.apply(x, 5.0), ["Apart.forward", "Apart.setup_context"], 5.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_noted(name: str) -> None:
    call, expected, slope = CALLS[name]
    noted: list[str] = []

    def note(which: str) -> Callable[..., Any]:
        def method_of(function: Any, method: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(method)
            def called(*args: Any) -> Any:
                assert function is not Twice or isinstance(args[0], torch.autograd.function.BackwardCFunction)
                noted.append(f"{function.__name__}.{which}")
                return method(*args)

            return called

        return method_of

    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        noted.clear()
        with functions_noted(note("forward"), note("setup_context")):
            y = call(x)
        assert noted == expected
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.tolist() == [slope, slope]
    noted.clear()
    call(x)
    assert noted == []


def test_assigned_and_made_functions_are_noted() -> None:
    def unchanged(function: Any, method: Callable[..., Any]) -> Callable[..., Any]:
        return method

    with functions_noted(lambda function, method: lambda ctx, x: -method(ctx, x), unchanged):

        class Made(Twice):
            pass

        Made.forward = staticmethod(lambda ctx, x: 7 * x)  # type: ignore[method-assign]
        assert Made.apply(torch.ones(1)).item() == -7.0
    assert Made.apply(torch.ones(1)).item() == 7.0
    assert "forward" not in vars(type(Twice))


def test_what_a_context_tells_in_forward() -> None:
    """Whether it is differentiated, what needs a gradient, and what is an attribute: read before `apply` has ended."""
    seen: list[tuple[bool, tuple[bool, ...], dict[str, Any]]] = []

    class Told(Twice):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.factor = 2
            ctx.save_for_backward(x)
            seen.append((bool(ctx.next_functions), ctx.needs_input_grad, vars(ctx)))
            return x

    x, w = torch.ones(1, requires_grad=True), torch.ones(1)
    Told.apply(x, w)
    Told.apply(w, x)
    Told.apply(w, w)
    with torch.no_grad():
        Told.apply(x, w)
    assert [(differentiated, attributes) for differentiated, _, attributes in seen] == [
        (True, {"factor": 2}),
        (True, {"factor": 2}),
        (False, {"factor": 2}),
        (False, {"factor": 2}),
    ]
    assert [needed for _, needed, _ in seen[:3]] == [(True, False), (False, True), (False, False)]
