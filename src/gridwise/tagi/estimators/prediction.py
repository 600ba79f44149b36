"""The predictions of a regressor or forecaster: a Gaussian for every observation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..metric import half_width
from .scaling import Scale


@dataclass(frozen=True)
class Prediction:
    """A Gaussian for every observation.

    Attributes
    ----------
    mean, std
        Mean and standard deviation of a future observation, noise included.
    model_std
        The part of the standard deviation that more data would reduce.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> x = np.linspace(-1, 1, 40, dtype='float32')[:, None]
    >>> net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> model = gridwise.tagi.Regressor(net, sigma_v=0.3).fit(x, x**2, epochs=2, progress=False)
    >>> low, high = model.predict(x).interval(0.95)
    >>> bool((low < high).all())
    True
    """

    mean: np.ndarray
    std: np.ndarray
    model_std: np.ndarray

    @classmethod
    def of(cls, mu: Tensor, var: Tensor, noise: Tensor | None, scale: Scale) -> Prediction:
        """From outputs in units of `scale` and a noise variance; None: even outputs are means, odd ones their noise."""
        if noise is None:
            mu, var, noise = mu[:, 0::2], var[:, 0::2], mu[:, 1::2]
        size, centre = scale.std.numpy(), scale.mean.numpy()
        return cls(mu.numpy() * size + centre, (var + noise).sqrt().numpy() * size, var.sqrt().numpy() * size)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that contains an observation with probability `level`."""
        reach = half_width(level) * self.std
        return self.mean - reach, self.mean + reach
