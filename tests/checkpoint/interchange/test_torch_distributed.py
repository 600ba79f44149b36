"""Folders of torch.distributed.checkpoint, with states of optimisers as `get_state_dict` writes them, in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from gridwise import checkpoint
from gridwise.checkpoint.interchange.torch_distributed import from_torch, to_torch
from gridwise.errors import CheckpointError, CheckpointMismatch

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")


def trained(seed: int = 0, steps: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network and an optimiser of two groups that has taken some steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "weight_decay": 0.5}]
    optimiser = torch.optim.AdamW(groups, lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimiser.step()
    return model, optimiser


def same(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> bool:
    first, second = a.state_dict(), b.state_dict()
    states = [
        torch.equal(torch.as_tensor(x), torch.as_tensor(second["state"][place][name]))
        for place, state in first["state"].items()
        for name, x in state.items()
    ]
    return bool(states) and all(states) and first["param_groups"] == second["param_groups"]


@pytest.mark.parametrize("flattened", [False, True])
def test_what_get_state_dict_writes_comes_in(tmp_path: Path, flattened: bool) -> None:
    model, optimiser = trained()
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    model_state, optimiser_state = get_state_dict(model, optimiser, options=options)
    dcp.save({"model": model_state, "optim": optimiser_state, "step": 3}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    checkpoint.convert(tmp_path / "dcp", tmp_path / "c", trust=True)
    other, its_optimiser = trained(1, steps=1)
    found = checkpoint.load(tmp_path / "c", into={"model": other, "optim": its_optimiser, "step": 0})
    assert found["step"] == 3
    assert same(optimiser, its_optimiser)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))


def test_an_optimiser_before_its_first_step(tmp_path: Path) -> None:
    model, optimiser = trained(steps=0)
    checkpoint.save(tmp_path / "c", {"model": model, "optim": optimiser})
    checkpoint.convert(tmp_path / "c", tmp_path / "dcp", to="torch.distributed")
    checkpoint.convert(tmp_path / "dcp", tmp_path / "d", trust=True)
    other, its_optimiser = trained(1, steps=1)
    checkpoint.load(tmp_path / "d", into={"model": other, "optim": its_optimiser})
    assert not its_optimiser.state
    assert its_optimiser.param_groups[1]["weight_decay"] == 0.5


def test_into_another_kind_of_optimiser_it_is_refused(tmp_path: Path) -> None:
    model, optimiser = trained()
    state = get_state_dict(model, optimiser)
    dcp.save({"model": state[0], "optim": state[1]}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    checkpoint.convert(tmp_path / "dcp", tmp_path / "c", trust=True)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    with pytest.raises(CheckpointMismatch, match="options that SGD does not have"):
        checkpoint.load(tmp_path / "c", into={"model": model, "optim": torch.optim.SGD(groups, lr=0.1)})


def test_out_and_into_set_state_dict(tmp_path: Path) -> None:
    model, optimiser = trained()
    checkpoint.save(tmp_path / "c", {"model": model, "optim": optimiser, "step": 3})
    checkpoint.convert(tmp_path / "c", tmp_path / "dcp", to="torch.distributed")
    other, its_optimiser = trained(1)
    model_state, optimiser_state = get_state_dict(other, its_optimiser)
    state: dict[str, Any] = {"model": model_state, "optim": optimiser_state, "step": 0}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    set_state_dict(other, its_optimiser, model_state_dict=state["model"], optim_state_dict=state["optim"])
    assert state["step"] == 3
    assert same(optimiser, its_optimiser)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))
    with pytest.raises(CheckpointError, match="there already"):
        checkpoint.convert(tmp_path / "c", tmp_path / "dcp", to="torch.distributed")
    with pytest.raises(CheckpointMismatch, match="'nothing'"):
        checkpoint.convert(tmp_path / "c", tmp_path / "no", to="torch.distributed", prefix="nothing")


def test_what_is_no_optimiser_stays_as_it_is() -> None:
    for state in (
        {"state": {"a": 1}, "param_groups": [{"params": [0, 1]}]},  # by numbers, not by names
        {"state": {}, "param_groups": "none"},
        {"groups": {0: {"params": ["a"]}}, "other": 1},
        {"state": 3},
    ):
        assert from_torch(state) == state
        assert to_torch(state) == state
