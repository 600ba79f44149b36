"""Does recording work with this version of torch? Asked before the first recording with one that the tests have not seen.

Small models are distributed on one worker: what a recording keeps has to be in it and equal the model, and what it would
lose has to be refused. Each says in a few words what no longer holds if it fails.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..comm.transports.solo import SoloTransport
from ..errors import UnsupportedError
from ..grid import Grid
from ..partition import CartesianPartition
from ..torch_internals.versions import TESTED, is_tested, this_version


def refuse_unknown_torch() -> None:
    """Raise if this version of torch has not been tested and recording does not work with it.

    Raises
    ------
    UnsupportedError : naming the version, what no longer holds, and the newest version that works
    """
    if is_tested(this_version()) or _checking[0]:
        return
    if problems := self_check():
        raise UnsupportedError(
            f"torch {this_version()} has not been tested with this version of Gridwise, and models cannot be recorded with it.",
            problems,
            f"install torch {TESTED[-1]}, the newest that is supported (the oldest is {TESTED[0]}), or a newer Gridwise.",
        )


_checking = [False]


@cache
def self_check() -> tuple[str, ...]:
    """What does not hold with this version of torch; nothing is sent, and no random numbers of the user are drawn."""
    state = random.getstate()
    _checking[0] = True
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            found = [_problem(what, _equals, *case) for what, case in KEPT.items()]
            found += [_problem(what, _is_refused, case) for what, case in REFUSED.items()]
    finally:
        _checking[0] = False
        _kept.clear()
        random.setstate(state)
    return tuple(problem for problem in found if problem is not None)


def _problem(what: str, check: Callable[..., str | None], *case: Any) -> str | None:
    try:
        reason = check(*case)
    except Exception as error:  # whatever a changed torch raises
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None if reason is None else f"{what}: {reason}"


class _Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, dtype=torch.float64, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sin()


class _Checked(torch.nn.Module):
    """A function of a module and a tensor, between two of its layers."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.inner = function, _Inner()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64, device="cpu"))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.function(self, self.inner(x)) * self.calls


class _Twice(torch.autograd.Function):
    """Twice the tensor, with five times it as the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return 5 * ctx.saved_tensors[0] * gradient, None


class _Returned(torch.autograd.Function):
    """The tensor itself, with three times it as the derivative, and a context that is set up apart."""

    @staticmethod
    def forward(x: Tensor, factor: float = 3.0) -> Tensor:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradient, None


_twice = _Twice.apply  # bound before the recording, as models do


def _without_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        mean = x.mean(0)
    return x - mean


def _in_half(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = F.linear(x.float(), m.inner.linear.weight.float())
    return x * (1.0 if half.dtype == torch.bfloat16 else 2.0) + half.double()


def _hooked(m: Any, x: Tensor) -> Tensor:
    handle = m.inner.register_forward_hook(lambda module, given, y: 2 * y)
    y = m.inner(x)
    handle.remove()
    return y


def _with_hook(m: Any, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: 2 * gradient)
    return x


def _with_saved(m: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return x.sin()


_kept: list[Tensor] = []


def _keeping(m: Any, x: Tensor) -> Tensor:
    _kept.append(x)
    return x


def _chosen(m: Any, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def _caught(m: Any, x: Tensor) -> Tensor:
    try:
        return _chosen(m, x)
    except RuntimeError:
        return x


Case = tuple[Callable[[Any, Tensor], Tensor], tuple[str, ...]]
KEPT: dict[str, Case] = {
    "calls of modules": (lambda m, x: m.inner(x), ()),
    "an autograd.Function": (lambda m, x: _twice(x, 2.0), ("function",)),
    "an autograd.Function with setup_context": (lambda m, x: _Returned.apply(x), ("function",)),
    "a checkpoint": (lambda m, x: checkpoint(m.inner, x, use_reentrant=False), ("checkpoint",)),
    "a reentrant checkpoint": (lambda m, x: checkpoint(m.inner, x, use_reentrant=True), ("checkpoint",)),
    "a forward hook": (_hooked, ()),
    "no_grad": (_without_grad, ()),
    "autocast": (_in_half, ()),
    "operators that torch composes of others": (
        lambda m, x: torch.einsum("bi,bj->bij", x, x).flatten(1).cosh()[:, :3],
        (),
    ),
    "a dropout that is off": (lambda m, x: F.dropout(x, 0.5, False) + x.data, ()),
}
"""What a recording keeps: a function, and the kinds of regions that it has in a recording."""
REFUSED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a hook of a tensor": _with_hook,
    "saved_tensors_hooks": _with_saved,
    "a tensor that the model keeps": _keeping,
    "a branch on a value": _chosen,
    "a branch on a value, whose error is caught": _caught,
    "random numbers of Python": lambda m, x: x * random.random(),
}
"""What would be lost."""


def _made(function: Callable[[Any, Tensor], Tensor]) -> tuple[Any, Any, Tensor]:
    """A model, the same distributed on a world of one worker, and an input."""
    from .distribute import distribute

    model = _Checked(function)
    x = torch.arange(12.0, dtype=torch.float64, device="cpu").view(4, 3).cos()
    return model, distribute(copy.deepcopy(model), CartesianPartition(SoloTransport(), Grid((0,), (1, 1)))), x


def _equals(function: Callable[[Any, Tensor], Tensor], regions: tuple[str, ...]) -> str | None:
    from .model import runner_of

    sequential, model, x = _made(function)
    results = []
    for each in (sequential, model):
        given = x.clone().requires_grad_()
        y = each(given)
        y.square().sum().backward()
        results.append([y, given.grad, *(p.grad for p in each.parameters()), *each.buffers()])
    recording = runner_of(model).recording
    nodes = [node for node in recording.module.graph.nodes if node.op == "call_function"]
    if tuple(region.kind for region in recording.regions.values()) != regions:
        return "is not in the recording"
    if {"", "inner.linear"} - {node.meta.get("module") for node in nodes}:
        return "the modules of operators are not known"
    same = all(a.dtype == b.dtype and torch.allclose(a, b) for a, b in zip(*results, strict=True))
    return None if same else "differs from the sequential model"


def _is_refused(function: Callable[[Any, Tensor], Tensor]) -> str | None:
    _, model, x = _made(function)
    try:
        model(x.requires_grad_())
    except UnsupportedError:
        return None
    return "is lost without an error"
