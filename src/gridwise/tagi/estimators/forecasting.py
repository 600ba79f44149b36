"""Time series: the next value from a window of the last ones, and further ahead with growing intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...errors import PartitionError
from ..nn import Sequential
from ..tagi_utils import Utils
from .estimator import Noise, Prediction
from .regression import Regressor
from .scaling import ColumnMoments, Scale


class Forecaster:
    """Predicts the next value of a series from a window of values.

    Parameters
    ----------
    net
        A `Sequential` from `window` values (an `LSTM(1, units, window)` first, say) to one output.
    window
        How many values the network sees.
    sigma_v
        Standard deviation of the noise of the standardised values: a number, or a function of the epoch.
    compile
        See `TrainStep`.
    """

    def __init__(self, net: Sequential, window: int, sigma_v: Noise = 0.1, compile: bool = False) -> None:
        if window < 1:
            raise PartitionError(f"Forecaster: `window` (={window}) is less than one.")
        self.window = window
        self._regressor = Regressor(net, sigma_v, standardize=False, compile=compile)
        self._scale = Scale.none()

    @property
    def history(self) -> list[dict[str, float]]:
        """Noise and error of each epoch."""
        return self._regressor.history

    def fit(self, series: Any, **options: Any) -> Forecaster:
        """Learn from the windows of a series; `options` as in `Estimator.fit`. A second fit starts anew."""
        values, before = self._looked_through(series), self._scale
        self._scale = self._scale_of(values)
        try:
            self._regressor.fit(*self._windows(values), **options)
        except PartitionError:
            self._scale = before
            raise
        return self

    def partial_fit(self, series: Any, **options: Any) -> Forecaster:
        """Learn on from what is known, with the scale of the first series."""
        if self._regressor._shape is None:
            return self.fit(series, **options)
        self._regressor.partial_fit(*self._windows(self._looked_through(series)), **options)
        return self

    def _looked_through(self, series: Any) -> np.ndarray:
        """The values of a series, after all workers have found that they can be learnt from; else all raise."""
        problem, values = None, np.zeros(0)
        try:
            values = _series(series, "fit")
            self._check(values[:-1], "fit", 0)
            self._windows(values)
        except PartitionError as error:
            problem = str(error)
        self._regressor._agree("fit of a series", problem)
        return values

    def _scale_of(self, values: np.ndarray) -> Scale:
        moments, team = ColumnMoments(), self._regressor.net.replicas
        moments.add(torch.as_tensor(values))
        return Scale.from_moments(moments if team is None else moments.over(team, ()))

    def predict(self, series: Any) -> Prediction:
        """One step ahead: a prediction for every value of the series from number `window` on."""
        values = _series(series, "predict")
        self._check(values[:-1], "predict", 0)
        return self._back(self._regressor.predict(self._windows(values)[0]))

    @torch.no_grad()
    def forecast(self, series: Any, steps: int) -> Prediction:
        """`steps` values after the end of the series; what is predicted goes in again with its variance."""
        values = _series(series, "forecast")
        if steps < 0:
            raise PartitionError(f"forecast: `steps` (={steps}) is less than zero.")
        if len(values) < self.window:
            raise PartitionError(f"forecast: {len(values)} values are fewer than `window` (={self.window}).")
        self._check(values[-self.window :], "forecast", len(values) - self.window)
        regressor = self._regressor
        mu, var = list(self._standardised(values[-self.window :])), [0.0] * self.window
        regressor._rows(np.array(mu)[None], "forecast")
        sigma = regressor._last_sigma()
        for _ in range(steps):
            row, row_var = (torch.tensor(a[-self.window :], dtype=torch.float64)[None] for a in (mu, var))
            m, v = regressor._outputs(row, 1, row_var)
            mu.append(float(m))
            var.append(float(v) + sigma**2)
        mean, total = np.array(mu[self.window :]), np.array(var[self.window :])
        return self._back(Prediction(mean, np.sqrt(total), np.sqrt(np.maximum(total - sigma**2, 0.0))))

    # ---- state ------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The network's state and all that forecasts and further fits need; a checkpoint takes the forecaster itself."""
        return {
            "window": self.window,
            "scale": self._scale.state_dict(),
            "regressor": self._regressor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the forecaster that `state_dict` was called on; another window or network is refused."""
        if state.get("window") != self.window:
            raise PartitionError(
                f"load_state_dict: the state has `window` (={state.get('window')}), this forecaster {self.window}."
            )
        self._regressor.load_state_dict(state["regressor"])
        self._scale = Scale.from_state(state["scale"])

    # ---- the series -------------------------------------------------------------------------------------------------
    def _check(self, values: np.ndarray, what: str, first: int) -> None:
        """Raise for a value that a window would bring into the network, and that is none."""
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise PartitionError(
                f"{what}: value {first + bad[0]} of the series is {values[bad[0]]}; a window with it predicts nothing.\n"
                "  fix: fill the gap (its neighbours' mean, or a forecast of it), or fit the parts one after the other."
            )

    def _standardised(self, values: np.ndarray) -> np.ndarray:
        return self._scale.standardise(torch.as_tensor(values)).numpy()

    def _windows(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = self._standardised(values)
        return Utils().create_rolling_window(rows, np.array([0]), self.window, 1, 1, 1)

    def _back(self, p: Prediction) -> Prediction:
        mean, std = float(self._scale.mean), float(self._scale.std)
        return Prediction(*(c.reshape(-1) for c in (p.mean * std + mean, p.std * std, p.model_std * std)))


def _series(series: Any, what: str) -> np.ndarray:
    values = np.asarray(series, np.float64)
    if values.ndim != 1 and values.shape != (len(values), 1):
        raise PartitionError(
            f"{what}: `series` has shape {values.shape}; it is one series of values, (n,) or (n, 1).\n"
            "  fix: one column of it."
        )
    return values.reshape(-1)
