"""Random models by tiles equal the models themselves, or are refused; nothing else."""

from __future__ import annotations

import random

import pytest
import torch

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.tiles import execute, schedule, stored_values

from ..models.random_graphs import case
from ..models.test_random_graphs import TORCH_IS_WRONG, sensitivity
from .equality import cotangent


def check(seed: int, part: int | None = None) -> bool:
    """Whether the model of a seed is equal; False if it is refused. With `part`, in that part of the memory of large tiles."""
    model, x, _ = case(seed)
    choose = random.Random(seed)
    if part is None:
        big = gridwise.tiled(model, tile=(choose.randint(1, 4), choose.randint(1, 4)))
    else:
        large = gridwise.tiled(model, memory="16MiB").plan(x, backward=True)
        big = gridwise.tiled(model, memory=large.peak // part, store="memory")
    found = []
    for each in (big, model):
        x.grad = None
        model.zero_grad()
        try:
            ys = [y for y in each(x) if y.requires_grad]
        except UnsupportedError:
            return False
        torch.autograd.backward(ys, [cotangent(y) for y in ys])
        found.append([*(y.detach() for y in ys), x.grad, *(p.grad for p in model.parameters())])
    worst = 0.0
    for a, b in zip(*found, strict=True):
        if a is None or b is None:
            assert a is None or not a.any()
            assert b is None or not b.any()
        else:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1)))
    assert worst < 1e-9 or worst < 100 * sensitivity(seed), (seed, worst)
    return True


@pytest.fixture(params=["recomputed", "stored"])
def little(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether small values are computed again for each tile, or stored like large ones."""
    if request.param == "stored":
        for module in (stored_values, schedule):
            monkeypatch.setattr(module, "LITTLE", 0)
        monkeypatch.setattr(execute.Store, "within", lambda limit, *where: execute.Store(*where, 0))


@pytest.mark.usefixtures("little")
def test_a_handful() -> None:
    assert all(check(seed) for seed in range(2000, 2006))


def test_a_handful_under_small_limits() -> None:
    assert all(check(seed, part=2) for seed in range(2000, 2003))


@pytest.mark.soak
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand(first: int) -> None:
    assert sum(check(seed) for seed in {*range(first, first + 100)} - TORCH_IS_WRONG) >= 90


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_four_hundred_under_small_limits(first: int) -> None:
    found = [check(seed, part) for seed in {*range(first, first + 100)} - TORCH_IS_WRONG for part in (2, 4)]
    assert sum(found) >= 0.8 * len(found)
