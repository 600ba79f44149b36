"""The comparison with a sequential layer finds a difference wherever it is, and all workers hear of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gridwise
from gridwise.testing import check_equal_to_sequential, workers
from gridwise.testing.inner import CheckFailed


class Scaled(torch.nn.Module):
    """x times a weight, by way of what one worker gets wrong."""

    def __init__(self, wrong: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), 3.0))
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        return self.wrong(x) if gridwise.world().rank == gridwise.world().size - 1 else x


def check(wrong: Callable[[Tensor], Tensor], P_x: gridwise.CartesianPartition) -> None:
    check_equal_to_sequential(Scaled(wrong), lambda x: x * 3.0, torch.arange(1.0, 7.0).view(2, 3), P_x)


@workers(1, 2, 3)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: x + 1.0, "the output differs"),
        (lambda x: x.detach() + 0.5 * x - 0.5 * x.detach(), "the input's gradient differs"),
        (lambda x: x[:, :0], "the output of shape (2, 3) is not made of blocks of shapes"),
        (lambda x: torch.cat([x, x], 1), "the output of shape (2, 3) is not made of blocks of shapes"),
    ],
)
def test_one_worker_is_wrong_and_all_are_told(wrong: Callable[[Tensor], Tensor], words: str) -> None:
    size = gridwise.world().size
    P_x = gridwise.world().create_cartesian_topology_partition([1, size])
    check(lambda x: x, P_x)
    with pytest.raises(CheckFailed) as caught:
        check(wrong, P_x)
    assert f"worker {size - 1}: {words}" in str(caught.value)


@workers(2)
def test_a_parameter_is_compared_and_blocks_lie_where_the_layout_says() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([2, 1])
    x, layout = torch.randn(5, 2), gridwise.grid.Layout(P_x.geometry, ((0, 1, 5), (0, 2)))
    sequential = Scaled()
    with pytest.raises(CheckFailed, match="the gradient of 'weight' differs"):  # which nobody has summed
        check_equal_to_sequential(Scaled(), sequential, x, P_x, layout=layout)
    check_equal_to_sequential(Scaled(), lambda x: 3.0 * x, x, P_x, layout=layout)


@workers(3)
def test_workers_outside_are_told_too() -> None:
    P_x = gridwise.world().create_partition_inclusive([1, 2]).create_cartesian_topology_partition([2, 1])
    check(lambda x: x, P_x)
    with pytest.raises(CheckFailed, match="worker 2: the output differs"):
        check(lambda x: x + 1.0, P_x)


@workers(1, 2)
def test_parameters_that_only_one_of_them_has_or_trains_are_found() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, gridwise.world().size])
    x = torch.arange(1.0, 7.0).view(2, 3)
    more, frozen = Scaled(), Scaled()
    more.bias = torch.nn.Parameter(torch.zeros(1))
    frozen.weight.requires_grad_(False)
    with pytest.raises(CheckFailed, match="parameter 'bias' is not one of the sequential layer"):
        check_equal_to_sequential(more, frozen, x, P_x)
    with pytest.raises(CheckFailed, match="the gradient of 'weight' differs"):
        check_equal_to_sequential(Scaled(), frozen, x, P_x)


@workers(1)
def test_gradients_of_earlier_steps_are_left_out() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    sequential = Scaled()
    for _ in range(2):
        check_equal_to_sequential(Scaled(), sequential, torch.ones(2, 3), P_x)
