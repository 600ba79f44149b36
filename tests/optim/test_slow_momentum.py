"""Slow momentum against its formula, written out for all workers in each of them."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.optim import SlowMomentumOptimizer
from gridwise.testing import workers


def expected(size: int, rank: int, steps: int, freq: int, lr: float, factor: float, slow_lr: float) -> torch.Tensor:
    weights = [torch.ones(3, dtype=torch.float64) for _ in range(size)]
    before, momentum = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for t in range(steps):
        weights = [w - lr * (w * (r + 1) + t) for r, w in enumerate(weights)]
        if t % freq == 0:
            mean = sum(weights) / size
            weights = [mean.clone() for _ in weights]
            if t:
                momentum = factor * momentum + (before - mean) / lr
                before = before - slow_lr * lr * momentum
                weights = [before.clone() for _ in weights]
    return weights[rank]


def train(optimizer, weight: torch.Tensor, first: int, last: int) -> None:
    rank = gridwise.world().rank
    for t in range(first, last):

        def closure(t: int = t) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (weight * weight * (rank + 1) / 2 + weight * t).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure) is not None


@workers(1, 2, 4, 6, transports=("gloo",))
def test_common_steps_follow_the_formula_and_resume() -> None:
    world = gridwise.world()
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = SlowMomentumOptimizer(torch.optim.SGD([weight], lr=0.1), 3, 0.5, 0.7)
    train(optimizer, weight, 0, 5)
    state = optimizer.state_dict()
    names = set(state)
    again = torch.nn.Parameter(weight.detach().clone())
    resumed = SlowMomentumOptimizer(torch.optim.SGD([again], lr=0.1), 7)
    resumed.load_state_dict(state)
    assert set(state) == names  # the caller's dict is the caller's
    train(optimizer, weight, 5, 8)
    right = expected(world.size, world.rank, 8, 3, 0.1, 0.5, 0.7)
    torch.testing.assert_close(weight.detach(), right)
    train(resumed, again, 5, 8)
    torch.testing.assert_close(again.detach(), right)
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


@workers(2, transports=("gloo",))
def test_parameters_of_a_grid_are_not_averaged_over_their_blocks() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([1, 2])
    layer = gridwise.nn.DistributedLinear(P_x, 4, 4)
    before = layer.weight.detach().clone()
    optimizer = SlowMomentumOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), 1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before - 0.2)


def test_wrong_numbers_are_refused() -> None:
    base = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="Base optimizer is a required parameter"):
        SlowMomentumOptimizer(None)  # type: ignore[arg-type]
    for wrong in ({"slowmo_freq": 0}, {"slowmo_factor": -1.0}, {"slowmo_lr": -1.0}):
        with pytest.raises(ValueError, match="Invalid ``slowmo_"):
            SlowMomentumOptimizer(base, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no slowmo_freq"):
        SlowMomentumOptimizer(base).load_state_dict(base.state_dict())
    optimizer = SlowMomentumOptimizer(base, 3)
    state = SlowMomentumOptimizer(base, 7).state_dict()
    del state["param_groups"][0]["lr"]
    with pytest.raises(ValueError, match="All parameter groups should have learning rate specified"):
        optimizer.load_state_dict(state)
    assert optimizer.slowmo_freq == 3
    assert optimizer.param_groups[0]["lr"] == 0.1
    without = torch.optim.Rprop([torch.nn.Parameter(torch.ones(1))])
    del without.param_groups[0]["lr"]
    with pytest.raises(ValueError, match="learning rate"):
        SlowMomentumOptimizer(without)
