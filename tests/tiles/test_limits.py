"""How much memory a call may use: what the user says, or what is free; and what is said if that is too little."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import gridwise
from gridwise import memory_sizes
from gridwise.errors import UnsupportedError
from gridwise.tiles import limits, runner

MODEL = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.Conv2d(16, 1, 3))


@pytest.mark.parametrize("backward", [False, True])
def test_the_memory_that_an_error_names_is_enough_and_it_names_the_operator(backward: bool) -> None:
    with pytest.raises(UnsupportedError) as caught:
        gridwise.tiled(MODEL, memory=400).plan((1, 1, 200, 200), backward=backward)
    assert re.search(r"is too little: \w+ in [0-9].*test_limits.py:\d+", str(caught.value))
    least = int(re.findall(r"memory=([\d,]+) or more", str(caught.value))[0].replace(",", ""))
    assert gridwise.tiled(MODEL, memory=least).plan((1, 1, 200, 200), backward=backward).peak <= least


def test_the_least_is_a_tile_with_its_halo_though_smaller_tiles_take_more_at_first() -> None:
    """Torch unrolls the windows of small inputs, which takes more than the copies that it makes of larger ones."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 1, 3, padding=1))
    assert gridwise.tiled(model, memory="100KiB").plan((1, 1, 400, 400), backward=True).peak <= 100 << 10


def test_by_default_a_tenth_of_what_is_free_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free", lambda device: 3_000_000)
    plan = gridwise.tiled(MODEL).plan((1, 1, 400, 400))
    assert plan.peak <= 2_700_000 == plan.memory
    assert plan.tiles > 2
    assert limits.free is not memory_sizes.free


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_shows_the_time_left_forward_and_backward(
    progress: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class AtOnce(runner.ProgressBar):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **{**settings, "patience": -1.0})

    monkeypatch.setattr("gridwise.progress.INTERVAL", 0.0)
    monkeypatch.setattr(runner, "ProgressBar", AtOnce)
    gridwise.tiled(MODEL, tile=(40, 40), progress=progress)(torch.rand(1, 1, 90, 90)).sum().backward()
    shown = capsys.readouterr().err
    assert ("the tiled Sequential |" in shown and " left] conv2d in 0" in shown) == progress
    assert ("backward of the tiled Sequential |" in shown) == progress
    assert shown.endswith("\r") == progress  # the line is erased
