"""Containers that a model takes and returns: put together again as they were."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import gridwise

from .recorded import distributed, partition


class Pair(NamedTuple):
    first: Tensor
    second: dict[str, Tensor]


@dataclass
class Data:
    y: Tensor
    name: str = "data"
    parts: list[Tensor] | None = None


class Output(OrderedDict):
    """A dict whose items are attributes too, as transformers has it."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


def output(y: Tensor) -> Output:
    made = Output()
    made["logits"], made["hidden"] = y, (y.sin(), y.cos())
    return made


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], list[Tensor]]]] = {
    "a named tuple": (lambda y: Pair(y, {"a": y.sin()}), lambda v: [v.first, v.second["a"]]),
    "a dataclass": (lambda y: Data(y, "mine", [y.sin()]), lambda v: [v.y, *v.parts]),
    "a dict with attributes": (output, lambda v: [v.logits, v["hidden"][0], v[1][1]]),
    "a list": (lambda y: [y, None, (y.sin(), 3)], lambda v: [v[0], v[2][0]]),
    "a function's tuple": (lambda y: y.max(1), lambda v: [v.values, v.indices]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(name: str) -> None:
    make, tensors = CONTAINERS[name]
    model, sequential, x = distributed(lambda m, y: make(y))
    y, expected = model(x), sequential(x)
    assert type(y) is type(expected)
    for mine, whole in zip(tensors(y), tensors(expected), strict=True):
        torch.testing.assert_close(mine, whole)
    for P in tensors(model.P_y):
        assert P.ranks == (0,)
    assert type(model.P_y) is type(expected)


def test_containers_as_inputs() -> None:
    class Net(nn.Module):
        def forward(self, data: Data, *more: Tensor, options: dict[str, Any]) -> Tensor:
            assert data.parts is not None
            y = data.y + data.parts[0] if options["adds"] else data.y - data.parts[0]
            return y * options["by"] + sum(more)

    model, x = gridwise.distribute(Net(), partition()), torch.randn(1, 2, 3, 4)
    for adds in (True, False):
        arguments = (Data(x, parts=[x.sin()]), x, 2 * x), {"options": {"adds": adds, "by": x.cos()}}
        torch.testing.assert_close(model(*arguments[0], **arguments[1]), Net()(*arguments[0], **arguments[1]))
