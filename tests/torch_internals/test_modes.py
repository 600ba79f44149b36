"""Modes, hooks of saved tensors, `__torch_function__` and transforms are found, or kept away from a body."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from gridwise.torch_internals.modes import (
    TorchDispatchMode,
    answer_for_devices,
    is_transformed,
    never_overridden,
    no_torch_function,
    without_device_guards,
    without_modes,
    without_saved_tensor_hooks,
    without_torch_function,
)


class Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.noted.append(str(func))
        return func(*args, **(kwargs or {}))


class Asked(Tensor):
    asked: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(Tensor):
    __torch_function__ = no_torch_function


def test_modes_see_operators_but_not_those_of_a_body_without_them() -> None:
    with Noting() as mode:
        torch.ones(2)
        with without_modes():
            torch.zeros(2)
        torch.ones(2).sin()
    assert mode.noted == ["aten.ones.default", "aten.ones.default", "aten.sin.default"]


def test_subclasses_are_not_asked() -> None:
    x = torch.ones(2).as_subclass(Asked)
    Asked.asked.clear()
    with without_torch_function():
        assert x.shape == (2,)
        x + 1
    assert Asked.asked == []
    x + 1
    assert "add" in Asked.asked
    assert type(torch.ones(2).as_subclass(Plain) + 1) is Tensor


def test_a_function_that_is_never_overridden_asks_of_what_it_calls() -> None:
    x = torch.ones(3).as_subclass(Asked)
    Asked.asked.clear()
    loss = torch.nn.functional.gaussian_nll_loss
    assert torch.equal(loss(x, x, x), never_overridden(loss)(x, x, x, eps=1e-6))
    assert Asked.asked.count("gaussian_nll_loss") == 1
    assert "any" in Asked.asked, "and whether a variance is negative"


def test_saved_tensors_are_not_packed_in_a_body_without_hooks() -> None:
    packed: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        packed.append(x)
        return x

    x = torch.ones(2, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
    ):
        with without_saved_tensor_hooks():
            x.sin()
        assert packed == []
        x.sin()
        assert len(packed) == 1
    x.sin()
    assert len(packed) == 1


def test_transforms_are_seen() -> None:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(is_transformed())
        return x.sin().sum()

    function(torch.ones(2))
    torch.func.grad(function)(torch.ones(2))
    torch.vmap(function)(torch.ones(2, 2))
    assert seen == [False, True, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_mode_answers_for_devices_that_are_not_there() -> None:
    class Pretending(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            answer_for_devices(self)
            self.devices: list[torch.device] = []

        def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            self.devices.append(torch.device((kwargs or {}).pop("device", "cpu")))
            return func(*args, **(kwargs or {}))

    with Pretending() as mode, without_device_guards():
        torch.ones(2, device="cuda")
    assert mode.devices == [torch.device("cuda")]


def test_a_mode_of_operators_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from gridwise.torch_internals.modes import OperatorMode

seen = []

class Mode(OperatorMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

with Mode():
    torch.ones(2) + 1
assert "add" in seen
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
