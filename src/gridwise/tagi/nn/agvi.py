"""AGVI, approximate Gaussian variance inference, as a layer: values with noise whose variance the network predicts.

Units come in pairs: z, and one that an activation with Jacobian J turns into the expected variance a = E[V**2] of the
noise V on z, itself uncertain with variance q. The output is y = z + V, half as many units:

    mu_y = mu_z          var_y = var_z + a

With innovations (delta, Delta) of y, and V ~ N(0, a) before, as in output_updater.py:

    V    | y:  mean = a delta                variance = a g,   g = 1 + a Delta
    V**2 | y:  mean+ = mean**2 + variance    variance+ = 2 variance**2 + 4 variance mean**2
    V**2 before:  a,  a**2 r                 r = 3 q / a**2 + 2
    delta_odd = (J / a) (a delta**2 + g - 1) / r
    Delta_odd = (J / a)**2 ((2 g**2 + 4 g a delta**2) / r - 1) / r

Even units get delta and Delta of y. With `overfit_mu` their delta is multiplied by var_y / var_z: the mean is fitted as
if there were no noise, which the original found to train faster.
"""

from __future__ import annotations

import torch

from ...errors import ArgumentError
from ..inference.moments import TINY
from .activation import Activation, halves, interleaved
from .base_layer import BaseLayer
from .gaussian import Gaussian, Innovation


class AGVI(BaseLayer):
    """Values with noise, from pairs of units.

    Parameters
    ----------
    odd_layer
        The activation that turns the odd units 1, 3, ... into variances: `Exp()`, say.
    even_layer
        The activation of the even units; None for the identity.
    overfit_mu
        Whether means are fitted as if there were no noise.
    agvi
        Whether the variance of the noise is added to that of the output.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.AGVI(nn.Exp()))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (2,)
    """

    def __init__(
        self, odd_layer: BaseLayer, even_layer: BaseLayer | None = None, overfit_mu: bool = True, agvi: bool = True
    ) -> None:
        super().__init__()
        for layer in (odd_layer, even_layer):
            if not isinstance(layer, Activation | None):
                raise ArgumentError(f"AGVI: {layer!r} is not an activation.")
        self.odd_layer, self.even_layer, self.overfit_mu, self.agvi = odd_layer, even_layer, overfit_mu, agvi

    def forward(self, x: Gaussian) -> Gaussian:
        even, odd = halves(x, "AGVI")
        noise = self.odd_layer.forward(odd)
        value = even if self.even_layer is None else self.even_layer.forward(even)
        var = value.variance() + noise.mu if self.agvi else value.variance()
        self._keep(value, noise, var)
        return Gaussian(value.mu, var)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        value, noise, var = self._recall()
        d = delta.reshape(*var.shape)
        of_noise = _of_noise(noise, d)
        if self.overfit_mu:
            d = Innovation(d.mu * (var / value.variance().clamp_min(TINY)), d.var)
        of_value = d.through(value.jcb)
        return Innovation(*(interleaved(even, odd) for even, odd in zip(of_value, of_noise, strict=True)))

    def get_layer_info(self) -> str:
        return f"AGVI({self.odd_layer.get_layer_name()})"


def _of_noise(noise: Gaussian, d: Innovation) -> Innovation:
    """Innovations of the odd units; zero where there is no noise, or its variance is known exactly."""
    a, q = noise.mu, noise.variance()
    g = torch.maximum(1.0 + a * d.var, TINY / a)  # the posterior variance stays positive
    square = a * d.mu * d.mu
    r = 3.0 * (q / a / a) + 2.0
    gain = noise.jacobian() / a
    mu, var = gain * (square + g - 1.0) / r, gain * gain * ((2.0 * g * g + 4.0 * g * square) / r - 1.0) / r
    known = (a > 0) & (q > 0) & torch.isfinite(mu) & torch.isfinite(var)
    return Innovation(torch.where(known, mu, 0.0), torch.where(known, var, 0.0))
