"""An optimiser whose states are cut moves the model as a whole one does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise import checkpoint
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.optim import cut_states
from gridwise.testing import workers

from ..models.parameters.test_cut import loss_of, made


def train(optimizer: Any, model: nn.Module, x: Tensor) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        return loss

    assert optimizer.step(closure) is not None


def same(model: nn.Module, alone: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().as_subclass(Tensor), theirs.detach())
    gridwise.check_replicas(model)


@workers(2, 3, transports=("gloo",))
def test_the_model_is_that_of_a_whole_optimiser() -> None:
    for kind in (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD):
        settings: dict[str, Any] = {"lr": 0.01} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
        model, alone, x, whole = made("odd", parameters="whole")
        mine = cut_states(kind, list(model.parameters())[:4], **settings)
        theirs = kind(list(alone.parameters())[:4], **settings)
        for step in range(3):
            train(mine, model, x)
            train(theirs, alone, whole)
            same(model, alone)
            if not step and kind is not torch.optim.Adagrad:  # torch 2.11's takes no parameters later
                for optimizer, each in ((mine, model), (theirs, alone)):
                    optimizer.add_param_group({"params": list(each.parameters())[4:], "lr": 0.02})
        elements = [
            sum(v.numel() for s in each.state.values() for v in s.values() if v.dim()) for each in (mine, theirs)
        ]
        assert elements[0] < 1.2 * elements[1] / gridwise.world().size + 8
        assert type(mine).__name__ == kind.__name__
        assert isinstance(mine, kind)
        # its own state, and that of a whole optimiser
        again = cut_states(kind, [{"params": g["params"]} for g in mine.param_groups], **settings)
        again.load_state_dict(copy.deepcopy(mine.state_dict()) if step else {})
        other = cut_states(kind, [{"params": g["params"]} for g in mine.param_groups], **settings)
        other.load_state_dict(copy.deepcopy(theirs.state_dict()))
        for p in model.parameters():
            for name, value in mine.state[p].items():
                torch.testing.assert_close(again.state[p][name], value)
                torch.testing.assert_close(other.state[p][name], value)


@workers(2, transports=("gloo",))
def test_schedulers_scaling_and_clipping() -> None:
    model, alone, x, whole = made("image", parameters="whole")
    optimizers = [
        cut_states(torch.optim.Adam, model.parameters(), lr=0.1, eps=1e-3),
        torch.optim.Adam(alone.parameters(), lr=0.1, eps=1e-3),
    ]
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in optimizers]
    scalers = [gridwise.optim.GradScaler("cpu", init_scale=8.0) for _ in optimizers]
    for _ in range(3):
        for each, given, optimizer, scheduler, scaler in zip(
            (model, alone), (x, whole), optimizers, schedulers, scalers, strict=True
        ):
            optimizer.zero_grad()
            scaler.scale(loss_of(each(given))).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    same(model, alone)


@workers(2, transports=("gloo",))
def test_refusals() -> None:
    model, *_ = made("image", parameters="whole")
    with pytest.raises(PartitionError, match="2 of 2 parameters are those of no distributed model"):
        cut_states(torch.optim.SGD, nn.Linear(4, 4).parameters(), lr=0.1)
    with pytest.raises(PartitionError, match=r"`kind` \(='AdamW'\) is no class of optimisers"):
        cut_states("AdamW", model.parameters())  # type: ignore[arg-type]
    optimizer = cut_states(torch.optim.Adafactor, model.parameters())
    with pytest.raises(UnsupportedError, match="Adafactor computes with whole tensors"):
        optimizer.step()


@workers(4, transports=("gloo",))
def test_checkpoints_of_whole_and_cut_states_and_parameters_are_the_same(tmp_path: Path) -> None:
    """Each is saved on one grid, and loaded on another and into the others."""

    def built(how: str, batch_only: bool) -> tuple[Any, Any, Tensor]:
        model, _, x, _ = made("image", batch_only, parameters="cut" if how == "cut" else "whole")
        kind = torch.optim.AdamW
        optimizer = (cut_states if how == "states" else lambda k, *a, **s: k(*a, **s))(
            kind, model.parameters(), lr=0.01
        )
        return model, optimizer, x

    root = Path(gridwise.world().transport.gather_bytes(str(tmp_path).encode(), gridwise.world().team)[0].decode())
    kinds, first = ("whole", "states", "cut"), {}
    for how in kinds:
        model, optimizer, x = built(how, True)
        for _ in range(2):
            train(optimizer, model, x)
        checkpoint.save(root / how, {"model": model, "optim": optimizer})
        first[how] = checkpoint.read(root / how)
    for how in kinds[1:]:
        assert _flat(first[how]).keys() == _flat(first["whole"]).keys()
        for name, value in _flat(first[how]).items():
            torch.testing.assert_close(value, _flat(first["whole"])[name], msg=lambda text, n=name: f"{n}: {text}")
    for saved, how in ((a, b) for a in kinds for b in kinds if a != b):
        model, optimizer, x = built(how, False)
        checkpoint.load(root / saved, into={"model": model, "optim": optimizer})
        checkpoint.save(root / f"{saved} as {how}", {"model": model, "optim": optimizer})
        for name, value in _flat(checkpoint.read(root / f"{saved} as {how}")).items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(_flat(first[saved])[name])), name
        full = gridwise.nn.full_state_dict(model)
        assert all(torch.equal(value, first[saved]["model"][name]) for name, value in full.items())


def _flat(tree: Any, key: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for name, part in tree.items() for k, v in _flat(part, f"{key}/{name}").items()}
    return {key: tree} if isinstance(tree, Tensor) else {}
