"""An overflow on one worker skips the step on all of them."""

from __future__ import annotations

import torch

import gridwise
import gridwise.optim
from gridwise.testing import workers


@workers(1, 2, 3)
def test_an_overflow_anywhere_skips_the_step_everywhere() -> None:
    world = gridwise.world()
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = gridwise.optim.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    for step, (overflows, expected, scale) in enumerate([(True, 1.0, 2.0), (False, 0.0, 4.0)]):
        optimizer.zero_grad()
        factor = float("inf") if overflows and world.rank == world.size - 1 else 1.0
        scaler.scale(parameter.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(parameter.detach(), torch.full((2,), expected)), step
        assert scaler.get_scale() == scale


@workers(2)
def test_a_worker_without_gradients_decides_too() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = gridwise.optim.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    if gridwise.world().rank == 0:
        parameter.grad = torch.full((2,), float("nan"))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert torch.equal(parameter.detach(), torch.ones(2))
