"""`gridwise tiled`: a model on a file, from the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import gridwise
from gridwise.cli import app

MODELS = """
import torch

class Coder(torch.nn.Sequential):
    def encode(self, x):
        return self[0](x)

def coder():
    return Coder(torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.BatchNorm2d(2), torch.nn.Dropout(0.5))

def nothing():
    return 3
"""
IMAGE = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32)


@pytest.fixture
def invoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "tiled_models", raising=False)
    Path("tiled_models.py").write_text(MODELS)
    np.save("image.npy", IMAGE)
    return lambda *arguments: CliRunner().invoke(app, ["tiled", *arguments])


def _expected(state: dict[str, torch.Tensor]) -> torch.Tensor:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.from_numpy(IMAGE)[None, None])[0]


def test_a_file_with_weights_from_any_kind_of_file(invoked: Callable[..., Any]) -> None:
    torch.manual_seed(5)
    state = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)).state_dict()
    save_file(dict(state), "weights.safetensors")
    torch.save({"epoch": 3, "state_dict": state}, "weights.pt")
    gridwise.checkpoint.save("weights", {"model": state})
    for place in ("weights.safetensors", "weights.pt", "weights"):
        done = invoked(
            "tiled_models:coder", "image.npy", "result.npy", "--memory", "1MiB", "--weights", place, "--overwrite"
        )
        assert done.exit_code == 0, done.output
        torch.testing.assert_close(torch.from_numpy(np.load("result.npy")), _expected(state))


def test_a_method_by_tiles_of_a_size(invoked: Callable[..., Any]) -> None:
    done = invoked("tiled_models:coder", "image.npy", "result.npy", "--tile", "16x16", "--method", "encode")
    assert done.exit_code == 0, done.output
    assert np.load("result.npy").shape == (2, 40, 50)


def test_a_plan_alone(invoked: Callable[..., Any]) -> None:
    done = invoked("tiled_models:coder", "image.npy", "--plan", "--html", "plan.html", "--memory", "1MiB")
    assert done.exit_code == 0, done.output
    assert "1.0 MiB allowed" in done.output
    assert Path("plan.html").stat().st_size > 3_000
    assert not Path("result.npy").exists()


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (["tiled_models:coder", "image.npy"], "ask for the --plan"),
        (["tiled_models:absent", "image.npy", "y.npy"], "cannot be found"),
        (["tiled_models:nothing", "image.npy", "y.npy"], "makes a int"),
        (["tiled_models:coder", "nowhere.npy", "y.npy"], "nowhere.npy"),
        (["tiled_models:coder", "image.npy", "y.txt"], "no ending that tells its format"),
        (["tiled_models:coder", "image.npy", "image.npy"], "is there already"),
        (["tiled_models:coder", "image.npy", "y.npy", "--memory", "64B"], "is too little"),
        (["tiled_models:coder", "image.npy", "y.npy", "--tile", "ax3"], "is no shape"),
        (["tiled_models:coder", "image.npy", "y.npy", "--method", "decode"], "has no method 'decode'"),
        (["tiled_models:coder", "image.npy", "y.npy", "--weights", "image.npy"], "image.npy"),
        (["tiled_models:coder", "image.npy", "y.npy", "--weights", "other.safetensors"], "does not fit the model"),
    ],
)
def test_what_is_wrong_is_said(invoked: Callable[..., Any], asked: list[str], problem: str) -> None:
    save_file({"a": torch.ones(2)}, "other.safetensors")
    done = invoked(*asked)
    assert done.exit_code == 2, done.exception
    assert problem in done.output
    assert not Path("y.npy").exists()
