"""Is this call like an earlier one? What compares as equal may not be the same to a model, and may have changed since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError
from gridwise.models.model import runner_of
from gridwise.testing import workers

from .recorded import partition


class Scaled(nn.Module):
    """Has a parameter and a buffer of one element each, and numbers."""

    factor: Any = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.zeros(1))
        self.scale: Any = 2
        self.sizes: list[Any] = [1, 2]
        self.inner = {"sizes": ([1, 2],)}

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x * self.scale * self.sizes[1] * self.inner["sizes"][0][0] * self.factor
        return (x * self.weight + self.shift) / self.sizes[0]


REPLACED: dict[str, Callable[[Any], Any]] = {
    "a parameter of another shape": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(1, 1, 1, 1, 1))),
    "a parameter of another dtype": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(1, dtype=torch.float64))),
    "a frozen parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(1), requires_grad=False)),
    "a buffer of another shape": lambda m: setattr(m, "shift", torch.zeros(1, 1, 1, 1, 1)),
    "a buffer of another dtype": lambda m: setattr(m, "shift", torch.zeros(1, dtype=torch.float64)),
    "a number of another type": lambda m: setattr(m, "scale", 2.0),
    "a number in a list": lambda m: m.sizes.__setitem__(1, 2.0),
    "a number in a list in a tuple in a dict": lambda m: m.inner["sizes"][0].__setitem__(0, 1.0),
    "a number of the class": lambda m: setattr(Scaled, "factor", 1.0),
    "a zero of the other sign": lambda m: m.sizes.__setitem__(0, -0.0),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_by_an_equal_value(name: str) -> None:
    model, sequential = gridwise.distribute(Scaled(), partition()), Scaled()
    try:
        for each in (model, sequential):
            each.sizes[0] = 0.0 if "zero" in name else 1
        for x in (torch.ones(1, 2, 2, 3), torch.ones(1, 2, 2, 3, dtype=torch.int64)):
            model(x)
        for each in (model, sequential):
            REPLACED[name](each)
        for x in (torch.ones(1, 2, 2, 3), torch.ones(1, 2, 2, 3, dtype=torch.int64)):
            y, expected = model(x), sequential(x)
            torch.testing.assert_close(y, expected)
            assert y.requires_grad == expected.requires_grad
    finally:
        Scaled.factor = 1


class ByShape(nn.Module):
    """Asks what shape its tensors have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.weight.numel() + self.shift + self.shift.dim()


def resize(model: Any, shape: tuple[int, ...]) -> None:
    model.weight.data = torch.full(shape, 2.0)


SHAPES: dict[str, Callable[[Any], Any]] = {
    "a parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(2, 1, 1))),
    "a parameter that is a number": lambda m: setattr(m, "weight", nn.Parameter(torch.tensor(1.0))),
    "a buffer": lambda m: setattr(m, "shift", torch.zeros(1, 1)),
    "numbers of the same parameter": lambda m: resize(m, (2, 1, 1)),
    "numbers of one shape after another": lambda m: (resize(m, (2, 1, 1)), m(torch.ones(1, 2, 2, 3)), resize(m, (3,))),
}


@workers(3, transports=("mpi",))
@pytest.mark.parametrize("called", [False, True], ids=["before the first call", "after a call"])
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_replaced_by_another_shape(name: str, called: bool) -> None:
    """The recording and the state of the model have the new shape, on a grid of some of the workers too."""
    P = gridwise.world().create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2, 1))
    model, sequential, x = gridwise.distribute(ByShape(), P), ByShape(), torch.ones(1, 2, 2, 3)
    for each in (model, sequential):
        own = x if each is sequential else x[gridwise.local_slice(P, x.shape)] if P.active else x[:0]
        if called:
            each(own)
        if P.active or "numbers" not in name:
            SHAPES[name](each)
        y = each(own)
        y.sum().backward()
        if each is model and P.active:
            got, state = y, model.state_dict()
    if P.active:
        torch.testing.assert_close(got, y[gridwise.local_slice(P, x.shape)])
        torch.testing.assert_close(model.weight.grad, sequential.weight.grad)
        assert {name: value.shape for name, value in state.items()} == {
            name: value.shape for name, value in sequential.state_dict().items()
        }


@workers(2, transports=("mpi",))
def test_a_cut_parameter_that_is_replaced_by_another_shape_is_refused_by_all() -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    model = gridwise.distribute(nn.Conv2d(4, 4, 1), P, parameters="cut")
    x = torch.ones(1, 4, 1, 3)
    model(x)
    if gridwise.world().rank == 1:
        model.weight = nn.Parameter(torch.ones(4, 4, 1, 1))
    with pytest.raises(
        PartitionError,
        match=r"worker 1: `weight`, which is cut, .* \(4, 4, 1, 1\); this worker's block is \(2, 4, 1, 1\)",
    ):
        model(x)


def test_equal_values_do_not_record_again() -> None:
    model, x = gridwise.distribute(Scaled(), partition()), torch.ones(1, 2, 2, 3)
    for _ in range(3):
        model.scale, model.sizes, model.inner = float("4"), [int("1000"), 2], {"sizes": ([1, 2],)}
        model(x)
    assert runner_of(model)._plans.count == 1


class Options:
    def __init__(self) -> None:
        self.by, self.inner = 2.0, {"plus": [1.0]}


@dataclass
class Choice:
    by: float = 2.0


class Given(nn.Module):
    def forward(self, x: Tensor, given: Any) -> Tensor:
        if isinstance(given, Options):
            return x * given.by + given.inner["plus"][0]
        if isinstance(given, Choice):
            return x * given.by
        return x * (given["a"] if isinstance(given, dict) else given[0])


CHANGED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a list": ([1, 2], lambda v: v.__setitem__(0, 5)),
    "a dict": ({"a": 1}, lambda v: v.__setitem__("a", 5)),
    "an array": (np.ones(2), lambda v: v.__setitem__(0, 5.0)),
    "an object": (Options(), lambda v: setattr(v, "by", 5.0)),
    "a list of an object": (Options(), lambda v: v.inner["plus"].__setitem__(0, 5.0)),
    "a dataclass": (Choice(), lambda v: setattr(v, "by", 5.0)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_argument_that_is_changed_between_calls(name: str) -> None:
    value, change = CHANGED[name]
    model, x = gridwise.distribute(Given(), partition()), torch.ones(1, 2, 2, 3)
    torch.testing.assert_close(model(x, value), Given()(x, value))
    change(value)
    torch.testing.assert_close(model(x, value), Given()(x, value))
    assert runner_of(model)._plans.count == 2
    model(x, value)
    assert runner_of(model)._plans.count == 2


def test_arguments_of_equal_value_and_another_type() -> None:
    model, x = gridwise.distribute(Given(), partition()), torch.ones(1, 2, 2, 3, dtype=torch.int64)
    for given in ((1, 2), (1.0, 2), (True, 2), [1], [1.0]):
        assert model(x, given).dtype == Given()(x, given).dtype
    y = torch.zeros(1, 2, 2, 3)
    for given in ((0.0,), (-0.0,)):
        torch.testing.assert_close(model(y + 1, given).reciprocal(), Given()(y + 1, given).reciprocal())
