"""A checkpoint into a model with other names, or with other parts: what fits is filled, the rest is reported."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import crew
from torch import nn

from gridwise import checkpoint
from gridwise.errors import CheckpointMismatch
from gridwise.partition import Partition


class Net(nn.Module):
    def __init__(self, body: str = "encoder", classes: int = 3, **others: nn.Module) -> None:
        super().__init__()
        self.add_module(body, nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)))
        self.head = nn.Linear(5, classes)
        for name, module in others.items():
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        body = getattr(self, "encoder", None) or self.backbone
        return self.head(body(x))


def trained(seed: int = 0, **options: Any) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Net(**options)
    adam = torch.optim.Adam(model.parameters(), lr=0.1 + seed)
    model(torch.randn(8, 4)).square().sum().backward()
    adam.step()
    return {"model": model, "optim": adam, "step": seed}


def momenta(state: dict[str, Any], name: str) -> torch.Tensor:
    return state["optim"].state[state["model"].get_parameter(name)]["exp_avg"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "c", trained())
    return tmp_path / "c"


RENAMES = [
    {"model/encoder": "model/backbone"},
    {"model/encoder.0.": "model/backbone.0.", "model/encoder.1": "model/backbone.1", "model/encoder": "nowhere"},
    lambda key: key.replace("model/encoder.", "model/backbone."),
]


@pytest.mark.parametrize("rename", RENAMES)
def test_names_change_and_the_optimiser_follows(rename: Any, path: Path) -> None:
    saved, into = trained(), trained(1, body="backbone")
    with pytest.raises(CheckpointMismatch, match=r"backbone\.0\.bias"):
        checkpoint.load(path, into)
    assert checkpoint.load(path, into, rename=rename) is into
    assert torch.equal(into["model"].backbone[0].weight, saved["model"].encoder[0].weight)
    assert torch.equal(into["model"].backbone[1].running_var, saved["model"].encoder[1].running_var)
    assert torch.equal(momenta(into, "backbone.0.weight"), momenta(saved, "encoder.0.weight"))
    assert torch.equal(momenta(into, "head.weight"), momenta(saved, "head.weight"))
    assert into["optim"].param_groups[0]["lr"] == 0.1
    assert into["step"] == 0


def test_another_head(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved, into = trained(), trained(1, classes=7)
    before, momentum = into["model"].head.weight.clone(), momenta(into, "head.weight").clone()
    with pytest.raises(CheckpointMismatch, match=r"Or leave it out: load\(\.\.\., rename=\{'model/head\."):
        checkpoint.load(path, into, strict=False)
    with caplog.at_level(logging.WARNING, "gridwise"):
        report = checkpoint.load(path, into, rename={"model/head": None}, strict=False)
    assert report.into is into
    assert set(report.missing) == {
        "model/head.weight",
        "model/head.bias",
        "optim/state/head.weight",
        "optim/state/head.bias",
    }
    assert report.left_out == ()
    assert torch.equal(into["model"].head.weight, before)
    assert torch.equal(momenta(into, "head.weight"), momentum)
    assert torch.equal(into["model"].encoder[0].weight, saved["model"].encoder[0].weight)
    assert torch.equal(momenta(into, "encoder.0.weight"), momenta(saved, "encoder.0.weight"))
    into["optim"].step()


def test_more_here_and_less_there(path: Path) -> None:
    into = {"model": Net(extra=nn.Linear(2, 2)), "epoch": 5, "more": {"x": torch.ones(2), "y": [torch.ones(1)]}}
    extra = into["model"].extra.weight.clone()
    report = checkpoint.load(path, into, strict=False)
    assert report.missing == ("model/extra.weight", "model/extra.bias", "epoch", "more")
    assert all(key.startswith("optim/") or key == "step" for key in report.left_out)
    assert "optim/state/encoder.0.weight/exp_avg" in report.left_out
    assert torch.equal(into["model"].extra.weight, extra)
    assert torch.equal(into["model"].encoder[0].weight, trained()["model"].encoder[0].weight)
    assert into["epoch"] == 5
    assert "model/extra.bias" in str(report)
    assert repr(report) == f"<LoadReport: 4 missing, {len(report.left_out)} left out>"


def test_nothing_to_report(path: Path) -> None:
    report = checkpoint.load(path, trained(1), strict=False)
    assert (report.missing, report.left_out) == ((), ())
    whole = checkpoint.load(path, rename={"model/encoder.0": "model/first", "optim": None})
    assert set(whole) == {"model", "step"}
    assert "first.weight" in whole["model"]


def test_lists_and_values_of_workers(tmp_path: Path) -> None:
    def loads(P: Partition) -> None:
        own = checkpoint.PerWorker({"rank": P.rank})
        checkpoint.save(tmp_path / "c", {"own": own, "list": [torch.ones(2), 3], "gone": 1}, P)
        into = {"mine": checkpoint.PerWorker({"rank": -1}), "list": [torch.zeros(2), 0], "new": (torch.zeros(1), 2)}
        report = checkpoint.load(tmp_path / "c", into, P, rename={"own": "mine"}, strict=False)
        assert into["mine"].value["rank"] == P.rank
        assert into["list"][1] == 3
        assert (report.missing, report.left_out) == (("new",), ("gone",))

    crew(2, loads)


@pytest.mark.parametrize(
    ("rename", "words"),
    [
        ({"model/enc": "model/backbone"}, "'model/enc', which the checkpoint does not have"),
        ({"model/encoder.0": "model/encoder.1"}, "one name, 'model/encoder.1."),
        (lambda key: "x", "one name, 'x'"),
    ],
)
def test_renames_that_are_mistakes(rename: Any, words: str, path: Path) -> None:
    with pytest.raises(CheckpointMismatch) as caught:
        checkpoint.load(path, trained(1), rename=rename, strict=False)
    assert words in str(caught.value)
