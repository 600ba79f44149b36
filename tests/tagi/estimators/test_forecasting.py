"""Forecasts: gaps, seasons, columns that are known ahead, and intervals that hold over the horizon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError
from gridwise.tagi import metric
from gridwise.tagi.series import covariates, windows


def forecaster(window: int, units: int = 20, **options: Any) -> tagi.Forecaster:
    periods, columns = options.get("periods", ()), options.get("exogenous", 0)
    tagi.manual_seed(0)
    inputs = tagi.Forecaster.inputs_for(window, periods, columns)
    net = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, 1))
    return tagi.Forecaster(net, window, **options)


def test_a_row_has_each_value_with_what_is_known_of_the_time_after_it() -> None:
    values, known = np.arange(5.0), 10.0 * np.arange(5.0)[:, None]
    assert windows(values, known, 2).tolist() == [[0, 10, 1, 20], [1, 20, 2, 30], [2, 30, 3, 40]]
    assert windows(values, np.zeros((5, 0)), 3).tolist() == [[0, 1, 2], [1, 2, 3]]
    np.testing.assert_allclose(covariates(np.zeros((3, 0)), (4,), 1), [[1, 0], [0, -1], [-1, 0]], atol=1e-12)


def test_gaps_are_skipped_and_predicted_through() -> None:
    t = np.arange(300)
    series = np.sin(2 * np.pi * t / 20)
    rng = np.random.default_rng(0)
    observed = series + 0.05 * rng.standard_normal(300)
    observed[rng.uniform(size=300) < 0.05] = np.nan
    observed[250:256] = np.nan
    model = forecaster(10, sigma_v=0.15).fit(observed[:240], epochs=15, progress=False)
    p = model.predict(observed)
    assert p.mean.shape == (290,)
    assert metric.rmse(p.mean, series[10:]) < 0.25
    assert p.model_std[246] > 1.5 * np.quantile(p.model_std, 0.2)  # it sees its own guesses
    ahead = model.forecast(observed[:256], 5)  # the last six are missing
    assert np.isfinite(ahead.mean).all()
    assert metric.rmse(ahead.mean, series[256:261]) < 0.5
    assert (ahead.std > model.forecast(observed[:250], 5).std).all()


def test_intervals_hold_over_the_horizon() -> None:
    """A slow season with noise that goes together from step to step: a recursion alone is far too sure of itself."""
    rng = np.random.default_rng(1)
    noise = np.zeros(900)
    for k in range(1, 900):
        noise[k] = 0.9 * noise[k - 1] + 0.15 * rng.standard_normal()
    series = 20 + 5 * (np.sin(2 * np.pi * np.arange(900) / 48) + noise)
    horizon = 24

    def held(model: tagi.Forecaster) -> float:
        inside = []
        for start in range(600, 876, 12):
            low, high = model.forecast(series[:start], horizon).interval(0.9)
            inside.append((low < series[start : start + horizon]) & (series[start : start + horizon] < high))
        return float(np.mean(inside))

    options: dict[str, Any] = {"epochs": 8, "progress": False}
    model = forecaster(12, periods=(48,), sigma_v=0.1).fit(series[:600], horizon=horizon, **options)
    stretched = held(model)
    assert 0.8 <= stretched <= 0.97
    plain = held(forecaster(12, periods=(48,), sigma_v=0.1).fit(series[:600], **options))
    assert abs(stretched - 0.9) < abs(plain - 0.9)
    twin = forecaster(12, periods=(48,), sigma_v=0.1)
    twin.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(twin.forecast(series, 30).std, model.forecast(series, 30).std)


def test_seasons_and_columns_are_used() -> None:
    rng = np.random.default_rng(2)
    t = np.arange(400)
    promotion = (rng.uniform(size=420) < 0.2).astype(float)
    series = np.sin(2 * np.pi * t / 7) + 2 * promotion[:400] + 0.05 * rng.standard_normal(400)
    model = forecaster(3, periods=(7,), exogenous=1, sigma_v=0.1)
    model.fit(series[:350], promotion[:350], epochs=15, progress=False)
    assert metric.rmse(model.predict(series[300:], promotion[300:400], start=300).mean, series[303:]) < 0.25
    ahead = model.forecast(series[:350], 20, promotion[:370])
    assert metric.rmse(ahead.mean, series[350:370]) < 0.4
    model.partial_fit(series[340:], promotion[340:400], start=340, epochs=1, progress=False)
    assert model.forecast(series, 20, promotion).mean.shape == (20,)
    with pytest.raises(ArgumentError, match=r"\(400, 1\), \(420, 1\) is needed: 1 columns for 400 values and 20 steps"):
        model.forecast(series, 20, promotion[:400])
    with pytest.raises(ArgumentError, match="`exogenous` is missing"):
        model.predict(series)
    promotion[3] = np.nan
    with pytest.raises(ArgumentError, match="row 3"):
        model.fit(series, promotion[:400])


def test_a_horizon_needs_more_than_a_window_before_the_held_out_values() -> None:
    model = tagi.Forecaster(nn.Sequential(nn.Linear(80, 1)), window=80)
    with pytest.raises(ArgumentError, match=r"`horizon` \(=5\) leaves 75 values[^\n]*`window` \(=80\)"):
        model.fit(np.arange(100.0), horizon=5, progress=False)


def test_settings_of_forecasts() -> None:
    model = forecaster(3)
    with pytest.raises(ArgumentError, match=r"`horizon` \(=9\) is from 1 to 4"):
        model.fit(np.arange(20.0), horizon=9)
    with pytest.raises(ArgumentError, match="periods"):
        forecaster(3, periods=(0,))
    state = model.fit(np.arange(20.0), progress=False).state_dict()
    with pytest.raises(ArgumentError, match="periods"):
        forecaster(3, periods=(7,)).load_state_dict(state)
