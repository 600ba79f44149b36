"""A step as a function of tensors: equal to the plain step, whatever the step depends on and however that changes.

Most tests run the traced graph itself, without the minute that a compiler takes.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.errors import UnsupportedError
from gridwise.tagi.inference import compiled_step
from gridwise.tagi.inference.native.values import NotNativeError


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are compiled by torch: `test_native.py` has the others."""

    def refuse(*args: object) -> None:
        raise NotNativeError("not here")

    monkeypatch.setattr(compiled_step, "native_step", refuse)


NETWORKS = {
    "fnn": (lambda: nn.Sequential(nn.Linear(6, 5), nn.MixtureReLU(), nn.Linear(5, 2)), (6,)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())),
            nn.MaxPool2d(2, 2),
            nn.AvgPool2d(2),
            nn.Linear(12, 2),
        ),
        (1, 8, 8),
    ),
    "lstm": (lambda: nn.Sequential(nn.LSTM(2, 3, 3), nn.LSTM(3, 3, 3), nn.Linear(9, 2)), (3, 2)),
    "stateful": (lambda: nn.Sequential(nn.LSTM(2, 3, 1), nn.Linear(3, 2)), (1, 2)),
    "norms": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm([8]), nn.RMSNorm([8]), nn.Linear(8, 2)), (6,)),
}


def _pair(name: str, **options: Any) -> tuple[nn.TrainStep, nn.TrainStep]:
    """The same network twice: compiled, and not."""
    torch.manual_seed(0)
    net = NETWORKS[name][0]()
    return nn.TrainStep(net, compile=True, **options), nn.TrainStep(copy.deepcopy(net), **options)


def _same_steps(name: str, one: nn.TrainStep, other: nn.TrainStep, batches: tuple[int, ...], **options: Any) -> None:
    for batch in batches:
        x = torch.randn(batch, *NETWORKS[name][1], dtype=options.get("dtype", torch.float32))
        y = torch.randn(batch, 2, dtype=x.dtype)
        for got, want in zip(one(x, y, 0.1), other(x, y, 0.1), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for key, value in one.net.state_dict().items():
        torch.testing.assert_close(value, other.net.state_dict()[key], rtol=1e-4, atol=1e-5)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are made; they run as they are, uncompiled."""
    graphs: list[Any] = []

    def keep(graph: Any, tensors: Any) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(compiled_step, "_compiled", keep)
    return graphs


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_does_what_the_layers_do(name: str, traced: list[Any]) -> None:
    one, other = _pair(name)
    _same_steps(name, one, other, (4, 4, 3, 4))
    assert len(traced) in (2, 4)  # one for each batch size; with states, for each combination with the one before


def test_tracing_changes_nothing(traced: list[Any]) -> None:
    one, _ = _pair("cnn")
    before = copy.deepcopy(one.net.state_dict())
    step = one._run
    assert isinstance(step, compiled_step.CompiledStep)
    batch = torch.randn(4, 1, 8, 8), None, torch.randn(4, 2), torch.tensor(0.1), None
    given = [t for t in batch if t is not None]
    step._make(batch, [], [*given, *(at[name] for at, name in step._slots)])
    for key, value in one.net.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_states_are_carried_and_reset(traced: list[Any]) -> None:
    one, other = _pair("stateful")
    _same_steps("stateful", one, other, (2, 2, 2))
    assert len(traced) == 2  # from zero, and from states
    for step in (one, other):
        step.net.reset_lstm_states()
    _same_steps("stateful", one, other, (2, 2))
    assert len(traced) == 2
    for got, want in zip(one.net.get_lstm_states()[0], other.net.get_lstm_states()[0], strict=True):
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-4, atol=1e-5)


def test_changed_settings_make_another_step(traced: list[Any]) -> None:
    one, other = _pair("fnn")
    _same_steps("fnn", one, other, (4,))
    for change in (
        lambda net: net.set_cap(7.0),
        lambda net: net.double(),
        lambda net: net.load_state_dict({k: v + 0.5 for k, v in net.state_dict().items()}, assign=True),
    ):
        for step in (one, other):
            change(step.net)
        _same_steps("fnn", one, other, (4,), dtype=one.net.layers[0].mu_w.dtype)
    assert len(traced) == 3  # loaded parameters are like the old ones


def test_a_batch_that_is_not_contiguous(traced: list[Any]) -> None:
    one, other = _pair("fnn")
    x, y = torch.randn(6, 4).t(), torch.randn(2, 4).t()
    for got, want in zip(one(x, y, 0.1), other(x, y, 0.1), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_copy_is_compiled_afresh(traced: list[Any]) -> None:
    one, other = _pair("fnn")
    _same_steps("fnn", one, other, (4,))
    twin, mine = copy.deepcopy(one), copy.deepcopy(one.net.state_dict())
    _same_steps("fnn", twin, other, (4,))
    assert twin.net is not one.net
    for key, value in one.net.state_dict().items():
        assert torch.equal(value, mine[key]), key


def test_what_cannot_be_compiled() -> None:
    net = nn.Sequential(nn.SLSTM(1, 2), nn.Linear(2, 1))
    with pytest.raises(UnsupportedError, match=r"SLSTM.*\n.*compile=False"):
        nn.TrainStep(net, compile=True)(torch.zeros(1, 1, 1), torch.zeros(1, 1), 0.1)


def test_without_a_compiler_the_step_runs_plainly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch._inductor, "compile", fail)
    one, other = _pair("stateful")
    with caplog.at_level(logging.WARNING, "gridwise"):
        _same_steps("stateful", one, other, (2, 2, 2))
    assert "not compiled: no compiler here" in caplog.text


@pytest.mark.soak  # `test_train_step` compiles a small network
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")  # torch's own compiler imports it
def test_compiled() -> None:
    one, other = _pair("cnn")
    _same_steps("cnn", one, other, (4, 4, 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
@pytest.mark.parametrize("name", ["cnn", "lstm", "stateful"])
def test_captured_on_a_gpu(name: str) -> None:
    """States are carried from replay to replay, and parameters may move to other memory."""
    one, other = _pair(name)
    for step in (one, other):
        step.net.to("cuda")
    _same_steps(name, one, other, (4,) * 6)
    for step in (one, other):
        step.net.load_state_dict({k: v.clone() for k, v in step.net.state_dict().items()}, assign=True)
    _same_steps(name, one, other, (4,) * 3)
