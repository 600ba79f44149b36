"""Gradients that are accumulated under `no_sync` are summed once, and never taken for complete ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import MismatchError, PartitionError
from gridwise.testing import workers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor, third: bool = False) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.third(y) if third else self.second(y)


def made(**options: Any) -> tuple[Any, nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    alone = Net().double()
    P_x = gridwise.world().create_cartesian_topology_partition([gridwise.world().size, 1])
    x = torch.randn(6, 6, dtype=torch.float64)
    model = gridwise.distribute(copy.deepcopy(alone), P_x, third=False, **options)
    return model, alone, x[gridwise.local_slice(P_x, x.shape)].clone(), x


def same(model: nn.Module, alone: nn.Module) -> None:
    for (name, mine), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        if theirs.grad is None:
            assert mine.grad is None, name
        else:
            torch.testing.assert_close(mine.grad, theirs.grad, msg=lambda text, name=name: f"{name}: {text}")


@workers(1, 2, 3, transports=("gloo",))
def test_one_sum_for_several_backwards() -> None:
    model, alone, x, whole = made()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone)]
    sums = []
    transport, post = gridwise.world().transport, gridwise.world().transport.post_sum
    transport.post_sum = lambda *given, **named: sums.append(1) or post(*given, **named)  # type: ignore
    try:
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.zero_grad()
            with gridwise.no_sync():
                for factor in (1, 2):
                    model(factor * x).square().sum().backward()
                late = model(3 * x).square().sum()
            late.backward()
            assert not sums
            model(4 * x).square().sum().backward()
            assert len(sums) == (gridwise.world().size > 1)
            sums.clear()
            for factor in (1, 2, 3, 4):
                alone(factor * whole).square().sum().backward()
            same(model, alone)
            model(5 * x).square().sum().backward()  # onto complete ones, as ever
            alone(5 * whole).square().sum().backward()
            same(model, alone)
            for optimizer in optimizers:
                optimizer.step()
            sums.clear()
    finally:
        del transport.post_sum


@workers(2, transports=("gloo",))
def test_parts_are_not_taken_for_gradients() -> None:
    model, alone, x, whole = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gridwise.no_sync():
        model(x).sum().backward()
    with pytest.raises(PartitionError, match="4 gradients are parts that no backward has summed"):
        optimizer.step()
    optimizer.zero_grad()  # parts that are given up
    model(x).sum().backward()
    alone(whole).sum().backward()
    same(model, alone)
    with gridwise.no_sync():
        y = model(x).sum()
    with pytest.raises(PartitionError, match="has a complete gradient already"):
        y.backward()
    optimizer.zero_grad()
    with gridwise.no_sync():
        y = model(x).sum()
    with pytest.raises(PartitionError, match="inside and outside of no_sync"):
        (y + model(x).sum()).backward()
    optimizer.zero_grad()
    with gridwise.no_sync() if gridwise.world().rank else torch.enable_grad(), pytest.raises(MismatchError):
        model(x)


@workers(2, transports=("gloo",))
def test_a_step_with_a_closure_that_sums_the_parts() -> None:
    """As Lightning's: the last backward is part of the step."""
    model, alone, x, whole = made()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone)]

    def backward(net: nn.Module, x: Tensor) -> Tensor:
        loss = net(x).square().sum()
        loss.backward()
        return loss

    with gridwise.no_sync():
        backward(model, x)
    backward(alone, whole)
    assert optimizers[0].step(lambda: backward(model, 2 * x)) is not None
    optimizers[1].step(closure=lambda: backward(alone, 2 * whole))
    same(model, alone)
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach())
    optimizers[0].zero_grad()
    with gridwise.no_sync():
        backward(model, x)
        with pytest.raises(PartitionError, match="4 gradients are parts"):
            optimizers[0].step(closure=lambda: backward(model, x))


@workers(2, transports=("gloo",))
def test_a_part_that_the_last_backward_does_not_use() -> None:
    model, alone, x, whole = made()
    with gridwise.no_sync():
        model(x).sum().backward()
    model.second.requires_grad_(True)
    P_x = model.P_x
    other = gridwise.distribute(lambda x: model(x) + 1, P_x)
    other(x).sum().backward()
    for _ in range(2):
        alone(whole).sum().backward()
    same(model, alone)


@workers(2, transports=("gloo",))
def test_cut_parameters_are_summed_in_each_backward() -> None:
    model, alone, x, whole = made(parameters="cut")
    with gridwise.no_sync():
        model(x).square().sum().backward()
    model(2 * x).square().sum().backward()
    for factor in (1, 2):
        alone(factor * whole).square().sum().backward()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, mine.sharding.cut(theirs.grad, gridwise.world().rank))
