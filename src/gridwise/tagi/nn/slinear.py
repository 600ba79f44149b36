"""A fully connected layer that can also map the smoothed outputs of an SLSTM."""

from __future__ import annotations

import torch

from .gaussian import Gaussian
from .linear import Linear, linear_moments


class SLinear(Linear):
    """`Linear`, after an `SLSTM`: `Sequential.smoother()` sends the smoothed states through it, step by step.

    The weights of that pass are those at the end of the series. Parameters as in `Linear`.

    Parameters
    ----------
    input_size, ..., init_method : as in `Linear`

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.SLSTM(1, 4), nn.SLinear(4, 1))
    >>> mu, var = net(np.ones((2, 1), dtype='float32'))
    >>> mu.shape
    (2,)
    """

    @torch.no_grad()
    def smoothed(self, hidden: Gaussian) -> Gaussian:
        """Moments of the output for the smoothed outputs of the layer before."""
        rows = hidden.reshape(-1, self.input_size)
        mu, var = linear_moments(self, rows, self.mu_w * self.mu_w)
        return Gaussian(mu, var)
