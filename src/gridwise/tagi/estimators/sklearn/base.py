"""Base of both scikit-learn estimators: checked settings, rows and sample weights, and the search."""

from __future__ import annotations

import copy
import numbers
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from ....errors import ArgumentError
from ...nn import Sequential, TrainStep
from ...nn.data_struct import Values, of_array
from ..scaling import Scale
from .search import Found, Settings, check_network, learn_epoch, refit, search
from .tasks import ACTIVATIONS, LearningTask, Network, network_of, outputs_of

AUTO = "auto"
"""The hidden layers are those of `TRIED` that make held-out rows likeliest."""

TRIED = ((50,), (50, 50))

LEARNT = "learnt"
"""The noise is the likeliest on held-out rows."""


class TAGIEstimator(BaseEstimator):
    """Base of `TAGIRegressor` and `TAGIClassifier`."""

    net_: Sequential
    hidden_layers_: tuple[int, ...]
    n_epochs_: int
    scale_x_: Scale

    def __init__(
        self,
        hidden_layers: Any = AUTO,
        activation: str = "mixture_relu",
        *,
        noise: float | str = LEARNT,
        batch_size: int = 32,
        max_epochs: int = 300,
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

        if not all(isinstance(n, numbers.Integral) and int(n) > 0 for widths in self._widths() for n in widths):
            raise ArgumentError(
                f"{name}: `hidden_layers` (={self.hidden_layers!r}) are numbers of units, 50 or (100, 100), say, or {AUTO!r}."
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
        tried: list[tuple[Found, tuple[int, ...], Network]] = []
        for widths, network in self._networks(task.network):
            task.network = network
            with self._seeded(0) as generator:  # the same folds for all
                tried.append((search(task, rows, settings, generator, self._print), widths, network))
        found, self.hidden_layers_, task.network = max(tried, key=lambda each: each[0].likelihood)
        with self._seeded(0) as generator:
            self.net_ = refit(task, rows, found.schedule, settings.batch_size, generator)
        if not found.converged:
            warnings.warn(
                f"{type(self).__name__}: the held-out likelihood was still increasing after `max_epochs` "
                f"(={settings.max_epochs}).\n  fix: more of them.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.n_epochs_, self.validation_score_ = len(found.schedule), found.likelihood
        self._found, self._residuals, self._calls = found.noise, found.residuals, 0

    def _learn_once(self, task: LearningTask, rows: int, batch_size: int, first: bool) -> None:
        """Learn the rows once, continuing from `net_`, which is replaced only if the new parameters are finite."""
        if first:
            self.hidden_layers_, self._residuals = self._widths()[-1], None
            task.network = list(self._networks(task.network))[-1][1]
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
        """What makes the network, of which the first of the hidden layers to try are a part."""
        return partial(network_of, [features, *self._widths()[0], outputs], self.activation, varying)

    def _networks(self, first: Any) -> Iterator[tuple[tuple[int, ...], Network]]:
        """The networks to try, with their hidden layers."""
        (features, *_, outputs), *rest = first.args
        for widths in self._widths():
            yield widths, partial(network_of, [features, *widths, outputs], *rest)

    def _widths(self) -> list[tuple[Any, ...]]:
        """The units of each hidden layer, for each network to try; one number is one layer, as in scikit-learn."""
        given = self.hidden_layers
        if isinstance(given, str):
            return list(TRIED) if given == AUTO else [(given,)]
        return [tuple(given) if isinstance(given, Iterable) else (given,)]

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
