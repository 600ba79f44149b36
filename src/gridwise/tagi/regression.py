"""Regression with intervals: noise of a known size, or noise whose size is learnt too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PartitionError
from .estimator import Batch, Estimator, Noise, Prediction, Scale
from .nn import Sequential


class Regressor(Estimator):
    """Predicts a Gaussian for each observation.

    Parameters
    ----------
    net
        A `Sequential` with one output for each observed quantity; with `heteroscedastic` two, and `EvenExp` at the end.
    sigma_v
        Standard deviation of the noise of the (standardised) observations, or a function of the epoch.
        Not used with `heteroscedastic`.
    heteroscedastic
        Whether the network predicts the variance of the noise as well.
    standardize
        Whether inputs and observations are standardised by the training data, and predictions brought back.
    compile
        See `TrainStep`.
    """

    def __init__(
        self,
        net: Sequential,
        sigma_v: Noise = 0.1,
        heteroscedastic: bool = False,
        standardize: bool = True,
        compile: bool = False,
    ) -> None:
        self.observe = "heteros" if heteroscedastic else "all"
        super().__init__(net, sigma_v, compile)
        self.heteroscedastic, self.standardize = heteroscedastic, standardize
        self.scale_x = self.scale_y = Scale.none()

    def _prepare(self, batches: Callable[[], Iterable[Batch]]) -> None:
        if self.standardize:
            self.scale_x = Scale.of(x for x, _ in batches())
            self.scale_y = Scale.of(y.reshape(len(y), -1) for _, y in batches())

    def _learn(self, x: Tensor, y: Tensor, sigma: float) -> float:
        y = self.scale_y.standardise(y.reshape(len(y), -1))
        mu, _ = self._step(self.scale_x.standardise(x), y, sigma**2)
        mean = mu.flatten(1)[:, 0::2] if self.heteroscedastic else mu.flatten(1)
        return float(torch.nanmean((mean - y) ** 2).sqrt())

    def predict(self, x: Any, batch_size: int = 1024) -> Prediction:
        """Means and standard deviations for all rows of `x`, in the units of the observations."""
        rows = torch.as_tensor(np.asarray(x), dtype=torch.get_default_dtype())
        mu, var = self._outputs(self.scale_x.standardise(rows), batch_size)
        if self.heteroscedastic:
            if mu.shape[1] % 2:
                raise PartitionError(f"Regressor: a heteroscedastic network has {mu.shape[1]} outputs, not pairs.")
            mean, model, noise = mu[:, 0::2], var[:, 0::2], mu[:, 1::2]
        else:
            sigma = self.history[-1]["sigma_v"] if self.history else 0.0
            mean, model, noise = mu, var, torch.full_like(var, sigma**2)
        scale, centre = self.scale_y.std.numpy(), self.scale_y.mean.numpy()
        return Prediction(
            mean.numpy() * scale + centre, (model + noise).sqrt().numpy() * scale, model.sqrt().numpy() * scale
        )
