"""Regression for scikit-learn: a mean and a standard deviation for every prediction, with learnt noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from ....errors import ArgumentError
from ...nn.data_struct import Values
from ..prediction import Prediction
from .base import LEARNT, TAGIEstimator, scale_of
from .noise import ends_of
from .tasks import Numbers, VaryingNumbers

VARYING = "heteroscedastic"

NOISE_MEMORY_ROWS = 1000
"""Most rows that earlier noise counts for in `partial_fit`: a network that has just begun makes errors of its own."""


class TAGIRegressor(RegressorMixin, TAGIEstimator):
    """A Bayesian neural network, trained in closed form, that predicts a Gaussian for each observation.

    Inputs and targets are standardised internally. The size of the noise and the number of epochs are found on held-out
    rows; then a new network learns from all rows.

    Parameters
    ----------
    hidden_layers
        Units of each hidden layer, or one number for one layer. 'auto': one or two layers of 50, whichever makes the
        held-out rows likelier; in `partial_fit` two.
    activation
        'relu', 'mixture_relu' (with exact moments) or 'tanh'.
    noise
        'learnt': one size, the likeliest on held-out rows. 'heteroscedastic': predicted by the network for each row, times
        the factor that makes the held-out rows likeliest.
        Or a number: the standard deviation of the noise, in the units of `y`.
    batch_size
        Rows of a training step.
    max_epochs, early_stopping, patience
        Learning ends after `patience` epochs without a better likelihood of the held-out rows, or after `max_epochs`;
        without `early_stopping` always after `max_epochs`. A ConvergenceWarning says that they were too few.
    validation_fraction
        The fraction of the rows that is held out at a time.
    random_state
        Seed of the initial network, the order of the rows and the choice of held-out rows.
    verbose
        1: print the result; 2: print every epoch too.

    Attributes
    ----------
    noise_ : float or array (n_outputs,)
        Standard deviation of the noise, in the units of `y`; its root mean square where it varies.
    hidden_layers_ : tuple
        Units of each hidden layer.
    n_epochs_ : int
        Number of epochs of the final network.
    validation_score_ : float
        Mean log-likelihood of the held-out rows, for standardised targets.
    net_ : gridwise.tagi.nn.Sequential
        The network, on standardised inputs and targets.
    n_features_in_, feature_names_in_, n_outputs_
        As everywhere in scikit-learn.

    Notes
    -----
    NaN in `y` means a missing target. A row of weight w counts as w rows: its noise variance is noise**2 / w.

    Examples
    --------
    >>> import numpy as np
    >>> from gridwise.tagi.sklearn import TAGIRegressor
    >>> x = np.linspace(-3, 3, 100)[:, None]
    >>> y = np.sin(x[:, 0]) + np.random.default_rng(0).normal(0, 0.1, 100)
    >>> model = TAGIRegressor(random_state=0).fit(x, y)
    >>> mean, std = model.predict(x, return_std=True)
    >>> low, high = model.predict_interval(x, 0.95)
    >>> bool(0.05 < model.noise_ < 0.2)
    True
    """

    noise_: float | np.ndarray

    # ---- learning ---------------------------------------------------------------------------------------------------
    def fit(self, X: Any, y: Any, sample_weight: Values | None = None) -> TAGIRegressor:
        """Learn from rows X (n_samples, n_features) and targets y (n_samples,) or (n_samples, n_outputs)."""
        settings = self._settings((LEARNT, VARYING))
        with self._unless_refused():
            X, columns, weight = self._data(X, y, sample_weight, reset=True)
            self.scale_x_, self.scale_y_ = scale_of(X, weight), scale_of(columns, weight)
            task = self._task(X, columns, weight)
            self._learn(task, len(X), settings)
            self._note_noise(task)
            self._noise_rows = _observed(task)
        if self.verbose:
            noise = np.array2string(np.asarray(self.noise_), precision=4)
            self._print(f"noise {noise}, {self.n_epochs_} epochs, held-out score {self.validation_score_:.4f}")
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Values | None = None) -> TAGIRegressor:
        """Learn the rows once, continuing from earlier calls, with the scales of the first rows.

        The noise of the first rows is a guess. All further rows are predicted before they are learnt, and their noise
        is the part of the errors beyond the predicted variance.
        """
        first = not hasattr(self, "net_")
        settings = self._settings((LEARNT, VARYING))
        with self._unless_refused():
            X, columns, weight = self._data(X, y, sample_weight, reset=first)
            if first:
                self.scale_x_, self.scale_y_ = scale_of(X, weight), scale_of(columns, weight)
            task = self._task(X, columns, weight)
            if first:
                self._found, self._noise_rows = task.first_noise(), torch.zeros(columns.shape[1])
                self.n_epochs_, self.validation_score_ = 1, float("nan")
            elif isinstance(task, Numbers) and task.fixed is None:
                self._found = self._with_errors(task, len(X))
            self._learn_once(task, len(X), settings.batch_size, first)
            self._note_noise(task)
        return self

    def _with_errors(self, task: Numbers, rows: int) -> Tensor:
        """The noise so far and that of new rows, not yet learnt, averaged by the numbers of targets in each column."""
        fresh, _ = task.judge(*task.outputs(self.net_, torch.arange(rows)), torch.arange(rows))
        known, new = self._noise_rows.clamp_max(NOISE_MEMORY_ROWS), _observed(task)
        self._noise_rows = self._noise_rows + new
        return self._found + (fresh - self._found) * new / (known + new).clamp_min(1.0)

    def _task(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Numbers | VaryingNumbers:
        x = self.scale_x_.standardise(torch.from_numpy(X))
        targets, w = self.scale_y_.standardise(torch.from_numpy(y)), torch.from_numpy(weight)
        if self.noise == VARYING:
            return VaryingNumbers(self._network(x.shape[1], 2 * y.shape[1], True), x, targets, w)
        fixed = None if self.noise == LEARNT else (float(self.noise) / self.scale_y_.std) ** 2
        return Numbers(self._network(x.shape[1], y.shape[1]), x, targets, w, fixed)

    def _data(
        self, X: Any, y: Any, sample_weight: Values | None, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, targets (row, column) and weights, without rows of weight zero or without targets."""
        if y is None:
            raise ArgumentError("TAGIRegressor: requires y to be passed, but the target y is None.")
        X = validate_data(self, X, dtype=np.float64, reset=reset)
        y = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
        check_consistent_length(X, y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        columns = y[:, None] if y.ndim == 1 else y
        if reset:
            self._is_flat, self.n_outputs_ = y.ndim == 1, columns.shape[1]
        elif columns.shape[1] != self.n_outputs_:
            raise ArgumentError(f"TAGIRegressor: `y` has {columns.shape[1]} columns, {self.n_outputs_} before.")
        weight = self._weights(sample_weight, X)
        used = (weight > 0) & ~np.isnan(columns).all(1)
        if not used.any():
            raise ArgumentError("TAGIRegressor: `y` is NaN in all rows: there is nothing to learn.")
        return X[used], columns[used], weight[used]

    def _note_noise(self, task: Numbers | VaryingNumbers) -> None:
        if isinstance(task, VaryingNumbers):
            mu, _ = task.outputs(self.net_, torch.arange(len(task.x)))
            noise = (self._found * mu[:, 1::2]).mean(0)
        else:
            noise = self._found
        std = np.sqrt(noise.numpy()) * self.scale_y_.std.numpy()
        self.noise_ = float(std[0]) if self._is_flat else std

    # ---- predictions ------------------------------------------------------------------------------------------------
    def predict(self, X: Values, return_std: bool = False) -> Any:
        """The expected targets; with `return_std` also the standard deviations of future observations."""
        p = self.predictive(X)
        return (p.mean, p.std) if return_std else p.mean

    def predict_interval(self, X: Values, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """An interval (low, high) that contains an observation with probability `level`, with equal chances below and above.

        Its ends are quantiles of the held-out errors, relative to their standard deviations. Where these are too few for
        `level`, or there are none (`partial_fit`), the interval is at least that of a Gaussian.
        """
        p = self.predictive(X)
        low, high = p.interval(level)
        if self._residuals is None:
            return low, high
        below, above = ends_of(self._residuals.numpy(), level)
        if self._is_flat:
            below, above = below[0], above[0]
        return p.mean + below * p.std, p.mean + above * p.std

    def predictive(self, X: Values) -> Prediction:
        """Mean and standard deviation of future observations, and the part of it that more data would reduce."""
        check_is_fitted(self, "net_")
        mu, var = self._outputs(X)
        noise = self._found
        if self.noise == VARYING:
            mu, var, noise = mu[:, 0::2], var[:, 0::2], noise * mu[:, 1::2]
        p = Prediction.of(mu, var, noise, self.scale_y_)
        return Prediction(p.mean[:, 0], p.std[:, 0], p.model_std[:, 0]) if self._is_flat else p

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _observed(task: Numbers | VaryingNumbers) -> Tensor:
    """The number of targets in each column."""
    return (~torch.isnan(task.y)).sum(0)
