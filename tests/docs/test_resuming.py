"""A run that goes on from a checkpoint on another grid repeats the interrupted step, dropout included, as pages write it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import text_of
from torch import nn
from torch.nn import functional as F

import gridwise
from gridwise import checkpoint
from gridwise.errors import CheckpointMismatch
from gridwise.testing import workers


def state_of(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """What a page puts into the checkpoint of a run."""
    (written,) = re.findall(r"^state = (\{.*?\})\n", text_of(page), re.DOTALL | re.MULTILINE)
    return eval(written, {"torch": torch, "checkpoint": checkpoint, "step": 0, **names})


def steps(page: str, path: Path, shape: tuple[int, ...], seed: int, resumed: bool) -> list[float]:
    """Losses of steps 1 and 2 of a run: on the way saved after step 0, or gone on from there, in a process of its own seed."""
    world = gridwise.world()
    P_x = world.create_partition_inclusive(range(torch.Size(shape).numel())).create_cartesian_topology_partition(shape)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.5), nn.Dropout2d(0.2), nn.Conv2d(8, 3, 3))
    loss_of = gridwise.distribute(lambda x: F.mse_loss(model(x), torch.ones(())), P_x)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, 1, 0.9)
    names = {"model": model, "optim": optimiser, "optimiser": optimiser, "optimizer": optimiser, "schedule": schedule}
    losses = []
    if not P_x.active:
        return losses
    for step in range(3):
        if step == 1:
            state = state_of(page, names)
            checkpoint.load(path, state, P_x) if resumed else checkpoint.save(path, state, P_x)
        elif step == 0 and resumed:
            continue
        x = torch.randn(4, 3, 11, 9, generator=torch.Generator().manual_seed(step))
        loss = loss_of(x[gridwise.local_slice(P_x, x.shape)])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@workers(4, transports=("gloo",))
@pytest.mark.parametrize("page", ["training-loop", "checkpoint"])
def test_the_recipe_repeats_the_interrupted_step_on_another_grid(page: str, tmp_path: Path) -> None:
    _, *expected = steps(page, tmp_path / "run", (1, 1, 2, 2), seed=0, resumed=False)
    again = steps(page, tmp_path / "run", (1, 1, 2, 2), seed=1, resumed=True)
    assert again == expected, "bit for bit on the same grid"
    for shape in ((2, 1, 2, 1), (1, 1, 2, 1), (1, 1, 1, 1)):
        losses = steps(page, tmp_path / "run", shape, seed=2, resumed=True)
        assert losses == (
            pytest.approx(expected, rel=1e-5) if gridwise.world().rank < torch.Size(shape).numel() else []
        )
        gridwise.world().barrier()


@workers(2, transports=("gloo",))
def test_generators_that_differ_are_not_saved_as_one(tmp_path: Path) -> None:
    torch.manual_seed(gridwise.world().rank)
    with pytest.raises(CheckpointMismatch, match="'rng'"):
        checkpoint.save(tmp_path / "run", {"rng": torch.default_generator})
