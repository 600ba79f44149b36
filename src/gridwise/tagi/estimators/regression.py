"""Regression with intervals: noise of known size, or noise that the network predicts too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..nn import Embedding, EvenExp, Sequential
from .batches import Shape, as_columns
from .estimator import Estimator
from .fitted_network import Noise
from .prediction import Prediction
from .scaling import ColumnMoments, Scale


class Regressor(Estimator):
    """Predicts a Gaussian for each observation.

    Parameters
    ----------
    net
        A `Sequential` with one output per observed quantity; with `heteroscedastic` two, and `EvenExp` at the end.
    sigma_v
        Standard deviation of the noise on the (standardised) observations, or a function of the epoch.
        Not used with `heteroscedastic`.
    heteroscedastic
        Whether the network predicts the variance of the noise as well.
    standardize
        Whether inputs and observations are standardised by the training data, and predictions scaled back. Indices for
        an `Embedding` stay as they are.
    compile
        See `TrainStep`.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> x = np.linspace(-1, 1, 40, dtype='float32')[:, None]
    >>> net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> model = gridwise.tagi.Regressor(net, sigma_v=0.3).fit(x, x**2, epochs=2, progress=False)
    >>> model.predict(x).mean.shape
    (40, 1)
    """

    def __init__(
        self,
        net: Sequential,
        sigma_v: Noise = 0.1,
        heteroscedastic: bool = False,
        standardize: bool = True,
        compile: bool = False,
    ) -> None:
        last = list(net.leaves())[-1] if isinstance(net, Sequential) else None  # else TrainStep raises
        if heteroscedastic and last is not None and not isinstance(last, EvenExp):
            raise ArgumentError(
                f"Regressor: `heteroscedastic` (=True) with a network that ends with {last.get_layer_info()}.\n"
                "  fix: two outputs for each observed quantity, then EvenExp()."
            )
        self.observe = "heteros" if heteroscedastic else "all"
        super().__init__(net, sigma_v, compile)
        self.heteroscedastic, self.standardize = heteroscedastic, standardize
        self.scale_x = self.scale_y = Scale.none()
        self._moments = ColumnMoments(), ColumnMoments()

    # ---- before the first epoch -------------------------------------------------------------------------------------
    def _begin(self) -> None:
        self._moments = ColumnMoments(), ColumnMoments()

    def _check_outputs(self, units: int, columns: int) -> None:
        needed = 2 * columns if self.heteroscedastic else columns
        if units != needed:
            pairs = " (a mean and a variance for each)" if self.heteroscedastic else ""
            raise ArgumentError(
                f"Regressor: `y` has {columns} columns, which need {needed} outputs{pairs}, the network has {units}.\n"
                f"  fix: a last layer with {needed} outputs, or `y` with as many columns as there are outputs."
            )

    def _inspect(self, what: str, x: Tensor, y: Tensor) -> None:
        if y.is_floating_point() and bool(torch.isinf(y).any()):
            row, column = torch.isinf(y).nonzero()[0].tolist()
            raise ArgumentError(
                f"{what}: `y` has {float(y[row, column])} in row {row}, column {column}.\n  fix: NaN for a missing value."
            )
        if self.standardize and self._shape is None:  # fit, not partial_fit
            for moments, block in zip(self._moments, (x, y), strict=True):
                moments.add(block)

    def _ready(self, shape: Shape, columns: int) -> None:
        if not self.standardize:
            return
        of_x, of_y = self._moments
        self.scale_x = Scale.of(of_x, self.net.replicas, shape)
        self.scale_y = Scale.of(of_y, self.net.replicas, (columns,))
        if isinstance(next(iter(self.net.leaves())), Embedding):
            self.scale_x = Scale.none()

    # ---- training and predictions -----------------------------------------------------------------------------------
    def _learn(self, x: Tensor, y: Tensor, sigma: float) -> float:
        y = self.scale_y.standardise(as_columns(y))
        mu, _ = self._step(self.scale_x.standardise(x), y, sigma**2)
        mean = mu.flatten(1)[:, 0::2] if self.heteroscedastic else mu.flatten(1)
        return float(torch.nanmean((mean - y) ** 2).sqrt())

    def predict(self, x: object, batch_size: int = 1024) -> Prediction:
        """Means and standard deviations for all rows of `x`, in the units of the observations."""
        mu, var = self._outputs(self.scale_x.standardise(self._rows(x, "predict")), batch_size)
        noise = None if self.heteroscedastic else torch.full_like(var, self._last_sigma() ** 2)
        return Prediction.of(mu, var, noise, self.scale_y)

    # ---- state ------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        scales = {"scale_x": self.scale_x.state_dict(), "scale_y": self.scale_y.state_dict()}
        return super().state_dict() | scales

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.scale_x, self.scale_y = Scale.from_state(state["scale_x"]), Scale.from_state(state["scale_y"])

    def _kind(self) -> str:
        return f"Regressor(heteroscedastic={self.heteroscedastic}, standardize={self.standardize})"
