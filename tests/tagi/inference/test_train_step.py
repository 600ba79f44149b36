"""One step as one call equals the same step in pieces, compiled or not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError
from gridwise.tagi.inference import compiled_step
from gridwise.tagi.inference.checked_step import Checked
from gridwise.tagi.inference.compiled_step import _IN_PLACE, CompiledStep
from gridwise.tagi.inference.native.values import NotNativeError


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm2d(8), nn.MixtureReLU(), nn.Linear(8, 4), nn.EvenExp())


def _in_pieces(net: nn.Sequential, kind: str, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> None:
    updater, out, delta = nn.OutputUpdater(net.device), net.output_z_buffer, net.input_delta_z_buffer
    net(x)
    if kind == "all":
        updater.update(out, y, np.full(y.numel(), 0.1), delta)
    elif kind == "indices":
        updater.update_using_indices(out, y, np.full(y.numel(), 0.1), index, delta)
    else:
        updater.update_heteros(out, y, delta)
    net.backward()
    net.step()


def _observations(kind: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.randn(batch, 4 if kind == "all" else 2)
    return y, torch.stack([torch.randperm(4)[:2] + 1 for _ in range(batch)])


def _small_net() -> nn.Sequential:
    """What torch compiles in a few seconds."""
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU())


def _compare(
    kind: str,
    compile: bool,
    device: str = "cpu",
    batches: tuple[int, ...] = (6, 6, 3),
    make: Callable[[], nn.Sequential] = _net,
) -> nn.TrainStep:
    """In eleven steps of this network rounding grows to 5e-7, whatever the numbers: the tolerance is for faults."""
    torch.manual_seed(0)
    net = make().to(device)
    pieces = copy.deepcopy(net)
    step = nn.TrainStep(net, kind, compile=compile)
    for batch in batches:
        x = torch.randn(batch, 5, device=device)
        y, index = (t.to(device) for t in _observations(kind, batch))
        mu, var = step(x, y, 0.1, index if kind == "indices" else None)
        _in_pieces(pieces, kind, x, y, index)
        torch.testing.assert_close(mu, pieces.output_z_buffer.gaussian.mu, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(var, pieces.output_z_buffer.gaussian.variance(), rtol=1e-4, atol=1e-5)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, pieces.state_dict()[name], rtol=1e-4, atol=1e-5)
    return step


def _used(step: nn.TrainStep) -> set[str]:
    assert isinstance(step._run, CompiledStep)
    return {made.run.name for made in step._run._made.values() if isinstance(made.run, Checked)}


def _refuse(*args: object) -> None:
    raise NotNativeError("torch compiles it")


@pytest.mark.parametrize("kind", ["all", "indices", "heteros"])
def test_one_call_equals_the_pieces(kind: str) -> None:
    _compare(kind, compile=False)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")  # torch's own compiler imports it
def test_compiled_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_step, "native_step", _refuse)
    step = _compare("indices", compile=True, batches=(6, 6), make=_small_net)
    assert _used(step) == {"compiled" if _IN_PLACE else "compiled out of place"}


@pytest.mark.soak  # torch compiles the same once more
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_compiled_out_of_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_step, "_IN_PLACE", False)
    monkeypatch.setattr(compiled_step, "native_step", _refuse)
    assert _used(_compare("indices", compile=True, batches=(6, 6), make=_small_net)) == {"compiled out of place"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["all", "indices", "heteros"])
def test_captured_on_a_gpu(kind: str) -> None:
    step = _compare(kind, compile=True, device="cuda", batches=(6, 6, 6, 6, 6, 3, 3, 3, 3, 3, 6))
    assert _used(step) <= {"compiled", "compiled out of place"}


def test_a_number_for_the_noise_becomes_a_tensor_once() -> None:
    step, like = nn.TrainStep(_net()), torch.zeros(1)
    kept = step._as_noise(0.1, like)
    assert step._as_noise(0.1, like) is kept
    assert float(step._as_noise(0.2, like)) == pytest.approx(0.2)
    assert step._as_noise(0.2, like.double()).dtype == torch.float64


def test_kinds_are_checked() -> None:
    with pytest.raises(ArgumentError, match="'all', 'indices' or 'heteros'"):
        nn.TrainStep(_net(), "some")
    with pytest.raises(ArgumentError, match="`index` is needed"):
        nn.TrainStep(_net(), "indices")(torch.zeros(2, 5), torch.zeros(2, 2), 0.1)
