"""Models made of one function, and whether they equal the sequential ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.testing import check_equal_to_sequential

GRIDS = {
    1: [(1, 1, 1, 1)],
    2: [(1, 1, 2, 1), (2, 1, 1, 1), (1, 2, 1, 1)],
    3: [(1, 1, 1, 3)],
    4: [(1, 1, 2, 2), (1, 2, 1, 2), (2, 1, 2, 1), (1, 1, 4, 1)],
}
SHAPE = (3, 4, 7, 6)


class Of(nn.Module):
    """A model made of a function of itself and its input."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class OfTwo(nn.Module):
    """A model made of a function of its two inputs."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


def parameter(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def check(make: Callable[[], nn.Module], grid: tuple[int, ...], shape: tuple[int, ...] = SHAPE) -> None:
    torch.manual_seed(0)
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    sequential = make().double()
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = gridwise.distribute(copy.deepcopy(sequential), P_x, example=x)
    for _ in range(2):  # planned at the first call, trusted at the second
        model.zero_grad()
        sequential.zero_grad()
        check_equal_to_sequential(model, sequential, x, P_x, model.P_y)


def check_or_refused(make: Callable[[], nn.Module], grid: tuple[int, ...], shape: tuple[int, ...] = SHAPE) -> None:
    """The model is equal to the sequential one, or refused by all workers before it runs, with a line of its code."""
    try:
        check(make, grid, shape)
    except UnsupportedError as error:
        assert ".py:" in str(error), error  # noqa: PT017


@contextmanager
def without_cudnn() -> Iterator[None]:
    """It has no gradients in evaluation, and takes no initial state that is a view."""
    before, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before
