"""Base of both scikit-learn estimators: checked settings, rows and sample weights, and the search."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from ....errors import ArgumentError
from ...nn import Sequential, TrainStep
from ...nn.data_struct import Values, of_array
from ..scaling import Scale
from .search import Settings, check_network, learn_epoch, refit, search
from .tasks import ACTIVATIONS, LearningTask, Network, network_of, outputs_of

LEARNT = "learnt"
"""The noise is the likeliest on held-out rows."""


class TAGIEstimator(BaseEstimator):
    """Base of `TAGIRegressor` and `TAGIClassifier`."""

    net_: Sequential
    n_epochs_: int
    scale_x_: Scale

    def __init__(
        self,
        hidden_layers: Any = (50,),
        activation: str = "relu",
        *,
        noise: float | str = LEARNT,
        batch_size: int = 32,
        max_epochs: int = 100,
        early_stopping: bool = True,
        patience: int = 10,
        validation_fraction: float = 0.2,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.hidden_layers = hidden_layers
        self.activation = activation
        self.noise = noise
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    # ---- settings ---------------------------------------------------------------------------------------------------
    def _settings(self, noises: tuple[str, ...]) -> Settings:
        """The arguments of `__init__`, checked."""
        name = type(self).__name__

        def whole(parameter: str, least: int) -> int:
            value = getattr(self, parameter)
            if not isinstance(value, numbers.Integral) or int(value) < least:
                raise ArgumentError(f"{name}: `{parameter}` (={value!r}) is a whole number from {least} on.")
            return int(value)

        if not all(isinstance(width, numbers.Integral) and int(width) > 0 for width in self._widths()):
            raise ArgumentError(
                f"{name}: `hidden_layers` (={self.hidden_layers!r}) are numbers of units, 50 or (100, 100), say."
            )
        if self.activation not in ACTIVATIONS:
            raise ArgumentError(
                f"{name}: `activation` (={self.activation!r}) is one of {', '.join(map(repr, ACTIVATIONS))}."
            )
        if not 0.0 < self.validation_fraction < 1.0:
            raise ArgumentError(
                f"{name}: `validation_fraction` (={self.validation_fraction!r}) is between 0 and 1, both excluded."
            )
        if isinstance(self.noise, str) or self.noise is None:
            if self.noise not in noises:
                raise ArgumentError(f"{name}: `noise` (={self.noise!r}) is a number or one of {noises}.")
        elif not (np.isfinite(self.noise) and self.noise > 0):
            raise ArgumentError(
                f"{name}: `noise` (={self.noise!r}) is a standard deviation: more than zero, and finite."
            )
        sizes = whole("batch_size", 1), whole("max_epochs", 1), bool(self.early_stopping), whole("patience", 1)
        return Settings(*sizes, self.validation_fraction, int(self.verbose))

    # ---- data -------------------------------------------------------------------------------------------------------
    def _rows(self, X: Values) -> Tensor:
        """`X` standardised for the network; raises if nothing has been fitted."""
        check_is_fitted(self, "net_")
        return self.scale_x_.standardise(of_array(validate_data(self, X, dtype=np.float64, reset=False)))

    def _weights(self, sample_weight: Values | None, X: np.ndarray) -> np.ndarray:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ArgumentError(f"{type(self).__name__}: `sample_weight` is zero for all rows.")
        return weight

    # ---- learning ---------------------------------------------------------------------------------------------------
    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        """Restore the estimator if the body raises."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _learn(self, task: LearningTask, rows: int, settings: Settings) -> None:
        """Search on held-out rows, then learn from all; sets the results, and leaves torch's generators unchanged."""
        if rows < 2:
            raise ArgumentError(
                f"{type(self).__name__}: n_samples={rows}; at least 2 are needed, because the noise and the number of epochs "
                "are found on rows that are held out."
            )
        with self._seeded(0) as generator:
            found = search(task, rows, settings, generator, self._print)
            self.net_ = refit(task, rows, found.schedule, settings.batch_size, generator)
        self.n_epochs_, self.validation_score_ = len(found.schedule), found.likelihood
        self._found, self._calls = found.noise, 0

    def _learn_once(self, task: LearningTask, rows: int, batch_size: int, first: bool) -> None:
        """Learn the rows once, continuing from `net_`, which is replaced only if the new parameters are finite."""
        self._calls = 0 if first else self._calls + 1
        with self._seeded(self._calls) as generator:
            net = task.network() if first else copy.deepcopy(self.net_)
            learn_epoch(task, TrainStep(net, task.observe), rows, self._found, batch_size, generator)
            check_network(net, 1)
        self.net_ = net.eval()

    @contextmanager
    def _seeded(self, call: int) -> Iterator[torch.Generator]:
        """A generator for the body, where torch's own has the same seed; it is restored afterwards."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) + call
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            yield torch.Generator().manual_seed(seed)

    def _network(self, features: int, outputs: int, varying: bool = False) -> Network:
        return partial(network_of, [features, *self._widths(), outputs], self.activation, varying)

    def _widths(self) -> list[Any]:
        """The units of each hidden layer; one number is one layer, as in scikit-learn."""
        return list(self.hidden_layers) if isinstance(self.hidden_layers, Iterable) else [self.hidden_layers]

    def _print(self, line: str) -> None:
        print(f"{type(self).__name__}: {line}", flush=True)

    def _outputs(self, X: Values) -> tuple[Tensor, Tensor]:
        return outputs_of(self.net_, self._rows(X))


def scale_of(values: np.ndarray, weight: np.ndarray) -> Scale:
    """Weighted mean and standard deviation of columns; NaN is left out."""
    known = ~np.isnan(values)
    w = weight[:, None] * known
    total = np.maximum(w.sum(0), 1e-300)
    mean = (np.where(known, values, 0.0) * w).sum(0) / total
    var = (np.where(known, values - mean, 0.0) ** 2 * w).sum(0) / total
    return Scale(torch.from_numpy(mean), torch.from_numpy(np.sqrt(var)))
