"""Time series: the next value from a window of the last ones, and further ahead with growing intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import PartitionError
from .estimator import Noise, Prediction
from .nn import Sequential
from .regression import Regressor
from .tagi_utils import Utils


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
        self.window = window
        self._regressor = Regressor(net, sigma_v, standardize=False, compile=compile)
        self._mean, self._std = 0.0, 1.0

    @property
    def history(self) -> list[dict[str, float]]:
        """Noise and error of each epoch."""
        return self._regressor.history

    def fit(self, series: Any, **options: Any) -> Forecaster:
        """Learn from the windows of a series; `options` as in `Estimator.fit`."""
        values = np.asarray(series, np.float64).reshape(-1)
        if not self.history:
            self._mean, self._std = float(np.nanmean(values)), float(np.nanstd(values)) or 1.0
        x, y = self._windows(values)
        self._regressor.fit(x, y, **options)
        return self

    def predict(self, series: Any) -> Prediction:
        """One step ahead: a prediction for every value of the series from number `window` on."""
        x, _ = self._windows(np.asarray(series, np.float64).reshape(-1))
        return self._back(self._regressor.predict(x))

    @torch.no_grad()
    def forecast(self, series: Any, steps: int) -> Prediction:
        """`steps` values after the end of the series; what is predicted goes in again with its variance."""
        values = self._standardised(np.asarray(series, np.float64).reshape(-1))
        if len(values) < self.window:
            raise PartitionError(f"forecast: {len(values)} values are fewer than `window` (={self.window}).")
        sigma = self.history[-1]["sigma_v"] if self.history else 0.0
        mu, var = list(values[-self.window :]), [0.0] * self.window
        for _ in range(steps):
            row, row_var = (np.array(a[-self.window :], np.float32)[None] for a in (mu, var))
            m, v = self._regressor._outputs(row, 1, row_var)
            mu.append(float(m))
            var.append(float(v) + sigma**2)
        mean, total = np.array(mu[self.window :]), np.array(var[self.window :])
        return self._back(Prediction(mean, np.sqrt(total), np.sqrt(np.maximum(total - sigma**2, 0.0))))

    def _standardised(self, values: np.ndarray) -> np.ndarray:
        return (values - self._mean) / self._std

    def _windows(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = self._standardised(values)
        return Utils().create_rolling_window(rows, np.array([0]), self.window, 1, 1, 1)

    def _back(self, p: Prediction) -> Prediction:
        columns = (p.mean * self._std + self._mean, p.std * self._std, p.model_std * self._std)
        return Prediction(*(c.reshape(-1) for c in columns))
