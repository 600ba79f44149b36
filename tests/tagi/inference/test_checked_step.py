"""A rewritten step is used where it is right, and never where it is wrong; either way a call is one step."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.tagi.inference import compiled_step
from gridwise.tagi.inference.checked_step import CALLS, Checked, StepCandidate, disagreement
from gridwise.tagi.inference.native.values import NotNativeError


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are compiled by torch: `test_native.py` has the others."""

    def refuse(*args: object) -> None:
        raise NotNativeError("not here")

    monkeypatch.setattr(compiled_step, "native_step", refuse)


EPS = torch.finfo(torch.float32).eps

Fault = Callable[[list[torch.Tensor], list[torch.Tensor]], Any]
"""What goes wrong in a step: it may change its tensors and its outputs."""


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.LSTM(2, 3, 1), nn.Linear(3, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(4, 2))


def _batch() -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.randn(5, 1, 2), torch.randn(5, 2), 0.1


def _everything(net: nn.Sequential) -> list[torch.Tensor]:
    states = [t for layer in net.layers for t in layer.carried()]
    return [*net.parameters(), *net.buffers(), *states]


class _Compiler:
    """Stands in for torch's: gives the graph back as it is, at first with `faults`, one for each compilation."""

    def __init__(self, *faults: Fault) -> None:
        self.faults, self.calls = list(faults), 0

    def __call__(self, graph: Any, tensors: Any, options: Any) -> Callable[..., list[torch.Tensor]]:
        fault = self.faults.pop(0) if self.faults else None

        def run(*values: torch.Tensor) -> list[torch.Tensor]:
            self.calls += 1
            out = list(graph(*values))
            if fault is not None:
                fault(list(values), out)
            return out

        return run


def _wrong_output(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    out[0] += 0.1


def _wrong_state(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    out[-1].mul_(1.5)


def _wrong_parameter(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    values[-5].mul_(1.01)  # the variances of the last layer's biases


def _wrong_count(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    next(v for v in values if v.dtype == torch.long and v.numel() == 1 and int(v) > 0).add_(1)


def _nan(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    out[1][0, 0] = torch.nan


def _spoilt_batch(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    values[0].zero_()


def _raises(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    raise RuntimeError("no such kernel")


FAULTS = [_wrong_output, _wrong_state, _wrong_parameter, _wrong_count, _nan, _spoilt_batch, _raises]


@pytest.fixture(autouse=True)
def _any_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_step, "_IN_PLACE", True)


def _steps(compiler: _Compiler, monkeypatch: pytest.MonkeyPatch, calls: int = CALLS + 2) -> nn.TrainStep:
    """A compiled and a plain step, call by call the same."""
    monkeypatch.setattr(torch._inductor, "compile", compiler)
    net = _net()
    step, plain = nn.TrainStep(net, compile=True), nn.TrainStep(copy.deepcopy(net))
    for _ in range(calls):
        batch = _batch()
        for got, want in zip(step(*batch), plain(*batch), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        for mine, other in zip(_everything(step.net), _everything(plain.net), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    return step


def _used(step: nn.TrainStep) -> set[str]:
    assert isinstance(step._run, compiled_step.CompiledStep)
    return {made.run.name for made in step._run._made.values() if isinstance(made.run, Checked)}


def test_a_right_one_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    compiler = _Compiler()
    with caplog.at_level(logging.WARNING, "gridwise"):
        step = _steps(compiler, monkeypatch)
    assert _used(step) == {"compiled"}
    assert not caplog.text
    assert compiler.calls == CALLS + 2  # each call once: it is the compiled step's result that stands


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_one_is_not_used(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gridwise"):
        step = _steps(_Compiler(fault), monkeypatch, calls=1)
    assert "the compiled step was wrong, the compiled out of place one is used" in caplog.text
    assert _used(step) == {"compiled out of place"}


@pytest.mark.parametrize("fault", [_wrong_output, _spoilt_batch, _raises])
def test_where_all_are_wrong_the_plain_step_is_used(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gridwise"):
        step = _steps(_Compiler(fault, fault, fault, fault), monkeypatch)  # a step from zero, and one from states
    assert "the compiled out of place step was wrong, the plain one is used" in caplog.text
    assert _used(step) == {"plain"}


def test_the_second_one_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gridwise"):
        step = _steps(_Compiler(_wrong_output), monkeypatch)
    assert _used(step) == {"compiled", "compiled out of place"}  # from zero, and from states
    assert "output 0 of shape (5, 1, 2) differs by 0.32" in caplog.text


def test_one_that_goes_wrong_later_is_caught(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def later(values: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        seen.append(out)
        if len(seen) > 2:
            out[0] += 0.1

    with caplog.at_level(logging.WARNING, "gridwise"):
        _steps(_Compiler(lambda values, out: None, later), monkeypatch)
    assert len(seen) == 3
    assert "the compiled step was wrong, the compiled out of place one is used" in caplog.text


def test_the_check_leaves_nothing_in_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    step = _steps(_Compiler(), monkeypatch, calls=1)
    for layer in step.net.leaves():
        assert not layer._memory
        assert layer._saved is None
    assert step.net.layers[2].batch_statistics is None


def test_a_tensor_that_is_there_twice_is_copied_once() -> None:
    def plain(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        a.add_(1.0)
        b.add_(1.0)
        return []

    t = torch.zeros(3)
    Checked(plain, plain, iter([StepCandidate("same", plain)]), EPS)(t, t)
    assert torch.equal(t, torch.full((3,), 2.0))


# ---- units that rounding puts on the other side of a jump ------------------------------------------------------------
def _rounded_otherwise(values: list[torch.Tensor]) -> None:
    """The candidate sees one input two units in the last place away: the first unit of the first sample crosses zero."""
    values[0][0, 1] -= 4 * EPS


def _lost_row(values: list[torch.Tensor], old: list[torch.Tensor]) -> None:
    """A row of weights into another unit is not updated."""
    where = next(i for i, v in enumerate(values) if v.shape == (32, 3))
    values[where][5] = old[where][5]


def _a_little_more(values: list[torch.Tensor], old: list[torch.Tensor]) -> None:
    where = next(i for i, v in enumerate(values) if v.shape == (2, 32))
    values[where] += 3e-3 * (values[where] - old[where])


def _nothing(values: list[torch.Tensor], old: list[torch.Tensor]) -> None:
    """No fault."""


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
@pytest.mark.parametrize(("fault", "stands"), [(_nothing, True), (_lost_row, False), (_a_little_more, False)])
def test_a_unit_that_rounding_flips_is_no_fault_and_hides_none(
    fault: Fault, stands: bool, activation: type[nn.BaseLayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 32), activation(), nn.Linear(32, 2))
    net.layers[0].mu_w[0] = torch.tensor([1.0, -1.0, 0.0])
    net.layers[0].mu_b[0] = 0.0
    x = torch.randn(64, 3)
    x[0] = torch.tensor([1.0, 1.0 + EPS, 0.0])

    def compiler(graph: Any, tensors: Any, options: Any) -> Callable[..., list[torch.Tensor]]:
        def run(*values: torch.Tensor) -> list[torch.Tensor]:
            old = [v.clone() for v in values]
            _rounded_otherwise(list(values))
            out = list(graph(*values))
            values[0].copy_(old[0])
            fault(list(values), old)
            return out

        return run

    monkeypatch.setattr(torch._inductor, "compile", compiler)
    step = nn.TrainStep(net, compile=True)
    mu, _ = step(x, torch.randn(64, 2), 0.1)
    assert mu.shape == (64, 2)
    assert _used(step) == {"compiled" if stands else "compiled out of place"}  # which the fault does not reach


def test_the_flipped_unit_would_not_agree_without_the_jumps() -> None:
    want, old = torch.ones(100), torch.zeros(100)
    got, slack = want.clone(), torch.zeros(100)
    got[3] += 0.2
    assert disagreement([got], [want], [old], EPS)
    assert disagreement([got], [want], [old], EPS, [slack])
    slack[3] = 0.15
    assert not disagreement([got], [want], [old], EPS, [slack])
    got[4] += 0.2
    assert disagreement([got], [want], [old], EPS, [slack])


def test_an_infinity_grants_nothing_to_the_others() -> None:
    want = torch.ones(100)
    want[7] = torch.inf
    got = want.clone()
    got[3] += 0.2
    assert disagreement([got], [want], [], EPS)


# ---- what agrees -----------------------------------------------------------------------------------------------------
def test_rounding_agrees_and_a_lost_update_does_not() -> None:
    old = torch.randn(1000)
    want = old + 1e-3 * torch.randn(1000)
    assert not disagreement([want * (1 + EPS)], [want], [old], EPS)
    assert "1 of what the step does" in disagreement([old], [want], [old], EPS)


def test_a_flipped_unit_among_many_agrees() -> None:
    want = torch.ones(1_000_000)
    want[17] = 0.1
    got = want.clone()
    got[17] = 0.0
    assert not disagreement([got], [want], [], EPS)
    assert disagreement([got[:100]], [want[:100]], [], EPS)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite(value: float) -> None:
    want = torch.randn(10)
    want[3] = value
    assert not disagreement([want.clone()], [want], [want.clone()], EPS)
    assert "not finite" in disagreement([want.nan_to_num(0.0, 0.0, 0.0)], [want], [want], EPS)


def test_shapes_and_numbers_of_tensors() -> None:
    t = torch.zeros(2)
    assert "1 tensors instead of 2" in disagreement([t], [t, t], [t], EPS)
    assert "(2,)" in disagreement([torch.zeros(3)], [t], [], EPS)
    assert "float64" in disagreement([t.double()], [t], [], EPS)
