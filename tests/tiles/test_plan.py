"""Plans of tiles: what they say agrees with what runs, and prints as text, HTML and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gridwise


@pytest.fixture(scope="module")
def plan() -> gridwise.tiles.TilePlan:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 1, 3))
    found = gridwise.tiled(model, memory="2MiB", store="memory").plan((1, 1, 300, 300), backward=True)
    assert isinstance(found, gridwise.tiles.TilePlan)
    return found


def test_it_names_stages_and_estimates_their_times(plan: gridwise.tiles.TilePlan) -> None:
    assert all(plan.stages[i].name.startswith("conv2d") for i in (0, -1))
    assert plan.stored[0] == 8 * 300 * 300 * 4
    assert all(forward > 0 and backward > 0 for forward, backward in plan.times)
    assert plan.seconds == pytest.approx(sum(a + b for a, b in plan.times))
    assert plan.peak <= 2**21
    assert "2.0 MiB allowed" in str(plan)


def test_the_page_is_self_contained_and_escapes_names(plan: gridwise.tiles.TilePlan, tmp_path: Path) -> None:
    plan.save_html(tmp_path / "there" / "plan.html")
    text = (tmp_path / "there" / "plan.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "http" not in text.replace('http-equiv="Content', "")
    assert "Memory of a tile" in text
    hostile = gridwise.tiled(lambda x: x * 2, tile=4)
    type(hostile)._tiled_runners["forward"].says = "<img src=x>"
    hostile.plan((9, 9)).save_html(tmp_path / "hostile.html")
    assert "<img" not in (tmp_path / "hostile.html").read_text(encoding="utf-8")


def test_the_picture(plan: gridwise.tiles.TilePlan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gridwise.show.planned(plan, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.fft.rfft2(x).abs().sort(-1).values,
        lambda x: nn.functional.dropout(x, 0.5) + x.mean(),
        lambda x: nn.functional.embedding((x > 0).long(), torch.ones(2, 3)),
        lambda x: x[:, :, :0].sum() + x,
    ],
)
def test_operators_of_all_kinds_have_times(model: object) -> None:
    for backward in (False, True):
        x = torch.rand(1, 2, 20, 20, requires_grad=backward)
        state = torch.get_rng_state()
        assert gridwise.tiled(model, tile=8).plan(x, backward=backward).seconds > 0  # type: ignore[arg-type]
        assert torch.equal(state, torch.get_rng_state())
