"""The self-check of recording with an unknown torch: it passes with this one, and says what a changed one no longer does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.models import self_check as checked
from gridwise.models.self_check import self_check
from gridwise.torch_internals.versions import TESTED, is_tested

from .recorded import partition


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    self_check.cache_clear()
    yield
    self_check.cache_clear()


def without(*args: object) -> nullcontext:
    return nullcontext([])


RECORDING = "gridwise.models.recording"
CHANGED: dict[str, tuple[str, object, tuple[str, ...]]] = {
    "Functions are called otherwise": (
        f"{RECORDING}.interception.functions_noted",
        without,
        ("an autograd.Function: ", "an autograd.Function with setup_context: is not in"),
    ),
    "checkpoints have other parts": (
        "gridwise.torch_internals.checkpoints.GENERATORS",
        (),
        ("a checkpoint: UnsupportedError",),
    ),
    "modules are called otherwise": (
        f"{RECORDING}.interception.Calls.noted",
        without,
        ("calls of modules: the modules of operators",),
    ),
    "hooks are registered otherwise": (
        f"{RECORDING}.interception.TENSOR_HOOKS",
        (),
        ("a hook of a tensor: is lost without an error",),
    ),
    "fakes are found otherwise": (
        f"{RECORDING}.record.kept_fakes",
        lambda *args: [],
        ("a tensor that the model keeps: is lost",),
    ),
    "errors are made otherwise": (
        "gridwise.torch_internals.tracer.NEEDS_NUMBERS",
        (),
        ("a branch on a value, whose error is caught: is lost",),
    ),
    "saved tensors are packed otherwise": (
        "torch.autograd.graph.save_on_cpu",
        nullcontext,
        ("saved_tensors_hooks: is lost",),
    ),
    "the tracer is gone": (f"{RECORDING}.tracing.make_fx", None, ("calls of modules: InternalError", "no_grad: Int")),
}


def test_it_passes_and_leaves_all_generators_alone() -> None:
    states = random.getstate(), torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert self_check() == ()
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


@pytest.mark.parametrize("name", CHANGED)
def test_it_says_what_no_longer_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, value, expected = CHANGED[name]
    monkeypatch.setattr(part, value)
    found = self_check()
    for start in expected:
        assert any(problem.startswith(start) for problem in found), found


def test_an_unknown_torch_that_fails_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "is_tested", lambda version: False)
    monkeypatch.setattr(f"{RECORDING}.interception.functions_noted", without)
    model = gridwise.distribute(nn.Conv2d(1, 1, 1), partition())
    with pytest.raises(UnsupportedError) as info:
        model(torch.ones(1, 1, 2, 2))
    said = str(info.value)
    assert said.startswith(f"torch {torch.__version__} has not been tested")
    assert "\n  an autograd.Function with setup_context: is not in the recording\n" in said
    assert f"fix: install torch {TESTED[-1]}, the newest" in said


def test_an_unknown_torch_that_passes_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(checked, "is_tested", lambda version: bool(asked.append(version)))
    conv = nn.Conv2d(1, 1, 1)
    torch.testing.assert_close(
        gridwise.distribute(conv, partition())(torch.ones(1, 1, 2, 2)), conv(torch.ones(1, 1, 2, 2))
    )
    assert asked == [str(torch.__version__)] * len(asked) != []


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("2.13.0", True),
        ("2.13.0+cpu", True),
        ("2.13.7+cu130", True),
        ("2.1.0", False),
        ("2.999.0", False),
        ("2.15.0.dev20261001+cpu", False),
        ("2.15.0a0+gitabc", False),
        ("2.15.0rc1", False),
    ],
)
def test_releases_of_tested_minor_versions_are_known(version: str, tested: bool) -> None:
    assert is_tested(version) is tested
