"""Time series forecasts: the next value from a window of past ones, and further ahead with calibrated intervals.

    row of the network    value t, covariates t+1 | value t+1, covariates t+2 | ...   `window` pairs, flat
    covariates            sine and cosine of each period, then the exogenous columns: known in advance
    further ahead         predictions are fed back as inputs, with their variances
    missing values        as observations: skipped; inside a window: the network's own prediction, with its variance

The variances of this recursion ignore that its errors are correlated. `fit(..., horizon=h)` therefore forecasts a
held-out part of the series from many starts, and stretches the standard deviation of each step ahead to the errors
found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import ArgumentError
from ..nn import Sequential
from ..nn.data_struct import Values
from ..series import TimeSeries, as_series, covariates, windows
from .fitted_network import Noise
from .prediction import Prediction
from .regression import Regressor
from .scaling import ColumnMoments, Scale

HELD_OUT, STARTS = 0.25, 40
"""The fraction of a series that is held out to find the stretch, and the most starts that it is forecast from."""


class Forecaster:
    """Predicts the next value of a series from a window of values.

    Parameters
    ----------
    net
        A `Sequential` from `inputs_for(window, periods, exogenous)` values (an `LSTM(1, units, window)` first, say) to
        one output. Each value comes with the covariates of the next step: `LSTM(1 + covariates, units, window)`.
    window
        The number of past values that the network takes.
    sigma_v
        Standard deviation of the noise on the standardised values: a number, or a function of the epoch.
    compile
        See `TrainStep`.
    periods
        Lengths of the seasons, in steps of the series: (24, 168) for hourly values with daily and weekly seasons.
    exogenous
        The number of additional columns (weather, holidays), whose future values are known.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> series = np.sin(np.arange(60) / 5).astype('float32')
    >>> net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> model = gridwise.tagi.Forecaster(net, window=6, sigma_v=0.3).fit(series, epochs=2, progress=False)
    >>> model.forecast(series, 3).mean.shape
    (3,)
    """

    def __init__(
        self,
        net: Sequential,
        window: int,
        sigma_v: Noise = 0.1,
        compile: bool = False,
        *,
        periods: Sequence[float] = (),
        exogenous: int = 0,
    ) -> None:
        if window < 1:
            raise ArgumentError(f"Forecaster: `window` (={window}) is less than one.")
        if exogenous < 0 or not all(p > 0 for p in periods):
            raise ArgumentError(
                f"Forecaster: `periods` (={tuple(periods)}) are above zero, and `exogenous` (={exogenous}) a number of columns."
            )
        self.window, self.periods, self.exogenous = window, tuple(float(p) for p in periods), exogenous
        self._regressor = Regressor(net, sigma_v, standardize=False, compile=compile)
        self._scale, self._scale_exogenous = Scale.none(), Scale.none()
        self._stretch: list[float] = []

    @staticmethod
    def inputs_for(window: int, periods: Sequence[float] = (), exogenous: int = 0) -> int:
        """The number of inputs that the network needs."""
        return window * (1 + 2 * len(periods) + exogenous)

    @property
    def history(self) -> list[dict[str, float]]:
        """Noise and error of each epoch."""
        return self._regressor.history

    # ---- learning ---------------------------------------------------------------------------------------------------
    def fit(
        self, series: Values, exogenous: Values | None = None, *, horizon: int | None = None, **options: Any
    ) -> Forecaster:
        """Learn from the windows of a series; a second fit starts over.

        Parameters
        ----------
        series
            Values in equal steps of time, (n,) or (n, 1); NaN where one is missing.
        exogenous
            (n, columns), without gaps, if the forecaster has exogenous columns.
        horizon
            How many steps ahead to calibrate intervals: they are stretched to the errors on the last quarter of the
            series, which is held out for that and learnt afterwards.
        options
            As in `Estimator.fit`.
        """
        data = self._looked_through(series, exogenous, horizon)
        before, history = (self._scale, self._scale_exogenous, self._stretch), self.history
        try:
            self._stretch = self._found_stretch(data, horizon, options) if horizon is not None else []
            self._learn(data, options)
        except BaseException:
            if self.history is history:  # the network is still the one before, too
                self._scale, self._scale_exogenous, self._stretch = before
            raise
        return self

    def partial_fit(
        self, series: Values, exogenous: Values | None = None, *, start: int = 0, **options: Any
    ) -> Forecaster:
        """Continue learning, with the scale of the first series; this one starts `start` steps after it."""
        if self._regressor._shape is None:
            return self.fit(series, exogenous, **options)
        self._regressor.partial_fit(*self._rows(self._looked_through(series, exogenous, None), start), **options)
        return self

    def _learn(self, data: TimeSeries, options: Mapping[str, Any]) -> None:
        self._scale, self._scale_exogenous = self._scale_of(data.values), self._scale_of(data.exogenous)
        self._regressor.fit(*self._rows(data, 0), **options)

    def _looked_through(self, series: Values, exogenous: Values | None, horizon: int | None) -> TimeSeries:
        """The data, once all workers have checked theirs; all raise if one finds a problem."""
        problem: Exception | None = None
        data = TimeSeries(np.zeros(0), np.zeros((0, self.exogenous)))
        try:
            data = as_series(series, exogenous, self.exogenous, 0, "fit")
            if len(data.values) and len(data.values) <= self.window:
                raise ArgumentError(f"fit: {len(data.values)} values are no more than `window` (={self.window}).")
            held = round(HELD_OUT * len(data.values))
            if horizon is not None and not 1 <= horizon <= held - 1:
                raise ArgumentError(
                    f"fit: `horizon` (={horizon}) is from 1 to {held - 1}: less than a quarter of {len(data.values)} values."
                )
            if horizon is not None and len(data.values) - held <= self.window:
                raise ArgumentError(
                    f"fit: `horizon` (={horizon}) leaves {len(data.values) - held} values to learn from, the last quarter "
                    f"being held out; they must be more than `window` (={self.window}).\n"
                    "  fix: a longer series, a shorter window, or no horizon."
                )
        except Exception as error:  # also of values that are no array: the other workers wait for this one
            problem = error
        self._regressor._agree("fit of a series", problem)
        return data

    def _rows(self, data: TimeSeries, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and observations; windows with a missing value are left out."""
        values = self._standardised(data.values)
        rows = windows(values, self._covariates(data.exogenous, start), self.window)
        whole = np.isfinite(rows).all(1)
        return rows[whole], values[self.window :][whole, None]

    def _found_stretch(self, data: TimeSeries, horizon: int, options: Mapping[str, Any]) -> list[float]:
        """The ratio of actual to predicted errors for each step ahead, on the held-out end of the series."""
        n = len(data.values)
        first = n - round(HELD_OUT * n)
        self._stretch = []
        self._learn(TimeSeries(data.values[:first], data.exogenous[:first]), options)
        starts = np.unique(np.linspace(first, n - horizon, min(STARTS, n - horizon - first + 1)).astype(int))
        mu, var = self._filled(data, 0)
        known = self._covariates(data.exogenous, 0)
        mean, total = self._ahead(
            np.stack([mu[s - self.window : s] for s in starts]),
            np.stack([var[s - self.window : s] for s in starts]),
            np.stack([known[s - self.window + 1 : s + horizon] for s in starts]),
        )
        values = self._standardised(data.values)
        squares = (np.stack([values[s : s + horizon] for s in starts]) - mean) ** 2 / total
        sums = torch.from_numpy(np.stack((np.nansum(squares, 0), np.isfinite(squares).sum(0).astype(float))))
        if (team := self._regressor.net.replicas) is not None:
            sums = team.transport.all_sum(sums, team.team, "the errors of forecasts")
        return _smooth(np.sqrt(sums[0].numpy() / np.maximum(sums[1].numpy(), 1.0))).tolist()

    def _scale_of(self, values: np.ndarray) -> Scale:
        moments = ColumnMoments()
        moments.add(torch.as_tensor(values))
        return Scale.of(moments, self._regressor.net.replicas, values.shape[1:])

    # ---- predictions ------------------------------------------------------------------------------------------------
    def predict(self, series: Values, exogenous: Values | None = None, *, start: int = 0) -> Prediction:
        """One-step-ahead predictions, for every value of the series from number `window` on.

        The series starts `start` steps after the first value of the fitted one, which matters for `periods`.
        """
        data = as_series(series, exogenous, self.exogenous, 0, "predict")
        self._check_fitted("predict")
        mu, var = self._filled(data, start)
        rows, spread = windows(mu, self._covariates(data.exogenous, start), self.window), self._spread(var)
        m, v = self._regressor._outputs(
            torch.from_numpy(rows), 1024, torch.from_numpy(spread) if spread.any() else None
        )
        return self._back(m.double().numpy()[:, 0], v.double().numpy()[:, 0] + self._noise(), self._stretch[:1])

    def forecast(self, series: Values, steps: int, exogenous: Values | None = None, *, start: int = 0) -> Prediction:
        """Predictions of the `steps` values after the end of the series, each fed back with its variance.

        `exogenous` has rows for the series and for the `steps` after it.
        """
        if steps < 0:
            raise ArgumentError(f"forecast: `steps` (={steps}) is less than zero.")
        data = as_series(series, exogenous, self.exogenous, steps, "forecast")
        n = len(data.values)
        if n < self.window:
            raise ArgumentError(f"forecast: {n} values are fewer than `window` (={self.window}).")
        self._check_fitted("forecast")
        mu, var = self._filled(TimeSeries(data.values, data.exogenous[:n]), start)
        known = self._covariates(data.exogenous, start)[n - self.window + 1 : n + steps]
        mean, total = self._ahead(mu[None, -self.window :], var[None, -self.window :], known[None])
        return self._back(mean[0], total[0], self._stretch)

    def _check_fitted(self, what: str) -> None:
        self._regressor._rows(np.zeros((1, self.inputs_for(self.window, self.periods, self.exogenous))), what)

    def _noise(self) -> float:
        return self._regressor._last_sigma() ** 2

    def _ahead(self, mu: np.ndarray, var: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (row, step) after windows (row, time), by recursion; `known` is (row, time, covariate)."""
        net = self._regressor.net.for_evaluation()
        for step in range(known.shape[1] - self.window + 1):
            here = slice(step, step + self.window)
            rows = np.concatenate((mu[:, here, None], known[:, here]), 2).reshape(len(mu), -1)
            spread = np.concatenate((var[:, here, None], np.zeros_like(known[:, here])), 2).reshape(len(mu), -1)
            m, v = self._regressor._outputs(torch.from_numpy(rows), 1024, torch.from_numpy(spread), net)
            mu = np.concatenate((mu, m.double().numpy()), 1)
            var = np.concatenate((var, v.double().numpy() + self._noise()), 1)
        return mu[:, self.window :], var[:, self.window :]

    def _filled(self, data: TimeSeries, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Standardised values and their variances: missing values are predicted, all others have variance zero."""
        mu, known = self._standardised(data.values), self._covariates(data.exogenous, start)
        var = np.zeros_like(mu)
        for place in np.flatnonzero(np.isnan(mu)):
            if place < self.window:
                mu[place], var[place] = 0.0, 1.0  # too few values before it: the distribution of the series
                continue
            last = slice(place - self.window, place)
            m, v = self._ahead(mu[None, last], var[None, last], known[None, place - self.window + 1 : place + 1])
            mu[place], var[place] = m[0, 0], v[0, 0]
        return mu, var

    def _spread(self, var: np.ndarray) -> np.ndarray:
        return windows(var, np.zeros((len(var), 2 * len(self.periods) + self.exogenous)), self.window)

    def _covariates(self, exogenous: np.ndarray, start: int) -> np.ndarray:
        return covariates(self._scale_exogenous.standardise(torch.as_tensor(exogenous)).numpy(), self.periods, start)

    def _standardised(self, values: np.ndarray) -> np.ndarray:
        return self._scale.standardise(torch.as_tensor(values)).numpy()

    def _back(self, mean: np.ndarray, total: np.ndarray, stretch: Sequence[float]) -> Prediction:
        """The prediction in the units of the series; step h is stretched by `stretch[h]`, those beyond by the last."""
        centre, size = float(self._scale.mean), float(self._scale.std)
        factor = np.ones(len(mean))
        if stretch:
            factor = np.array(stretch)[np.minimum(np.arange(len(mean)), len(stretch) - 1)]
        model = np.sqrt(np.maximum(total - self._noise(), 0.0))
        return Prediction(*(part * size for part in (mean + centre / size, np.sqrt(total) * factor, model * factor)))

    # ---- state ------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The network's state and all that forecasts and further fits need; checkpoints take the forecaster itself."""
        return {
            "window": self.window,
            "periods": list(self.periods),
            "exogenous": self.exogenous,
            "stretch": list(self._stretch),
            "scale": self._scale.state_dict(),
            "scale_exogenous": self._scale_exogenous.state_dict(),
            "regressor": self._regressor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the forecaster that `state_dict` was called on; raises if window, periods or columns differ."""
        mine = {"window": self.window, "periods": list(self.periods), "exogenous": self.exogenous}
        for name, value in mine.items():
            if (theirs := state.get(name, value if name != "window" else None)) != value:
                raise ArgumentError(f"load_state_dict: the state has `{name}` (={theirs}), this forecaster {value}.")
        self._regressor.load_state_dict(state["regressor"])
        self._scale = Scale.from_state(state["scale"])
        self._scale_exogenous = (
            Scale.from_state(state["scale_exogenous"]) if "scale_exogenous" in state else Scale.none()
        )
        self._stretch = [float(factor) for factor in state.get("stretch", [])]


def _smooth(stretch: np.ndarray) -> np.ndarray:
    """The root mean square over each step and its two neighbours on each side, since each step has few samples."""
    padded = np.pad(stretch**2, 2, mode="edge")
    return np.sqrt(np.convolve(padded, np.full(5, 0.2), mode="valid"))
