"""The two values that travel through a TAGI network.

    Gaussian     forward:   every hidden unit a ~ N(mu, var), independent of its neighbours
    Innovation   backward:  posterior minus prior, normalised by the prior variance

        delta_mu  = (mu_posterior  - mu_prior)  / var_prior
        delta_var = (var_posterior - var_prior) / var_prior**2

Thanks to that division no layer needs the variance of its own output on the way back: a linear map y = W x has
`delta_mu_x = W' delta_mu_y` and `delta_var_x = (W*W)' delta_var_y`, the adjoints of its forward moments.

`jcb` is Cov(a, z) / Var(z) for a = activation(z). An activation sets it; the layer that consumes `a` multiplies its
input innovations by `jcb` and `jcb**2`, so that they refer to z. `None` stands for a variance of exactly zero or a
Jacobian of exactly one: both save work, the first a third of the forward products of a network's first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Gaussian(NamedTuple):
    """Independent Gaussians: their means, their variances, and the Jacobian of the activation that made them.

    Parameters
    ----------
    mu : means
    var : variances, None for zero
    jcb : the Jacobian of the activation that made them, None for one

    Examples
    --------
    >>> gridwise.tagi.nn.Gaussian(torch.zeros(2), torch.ones(2)).mu
    tensor([0., 0.])
    """

    mu: Tensor
    var: Tensor | None = None  # None: exactly zero
    jcb: Tensor | None = None  # None: exactly one

    def map(self, change: Callable[[Tensor], Tensor]) -> Gaussian:
        """`change` applied to the means, and to the variances and Jacobians that are not None."""
        var, jcb = (None if t is None else change(t) for t in (self.var, self.jcb))
        return Gaussian(change(self.mu), var, jcb)

    def reshape(self, *shape: int) -> Gaussian:
        """The same units under another shape."""
        return self.map(lambda t: t.reshape(shape))

    def variance(self) -> Tensor:
        """The variances as a tensor: zeros for None."""
        return torch.zeros_like(self.mu) if self.var is None else self.var

    def jacobian(self) -> Tensor:
        """The Jacobians as a tensor: ones for None."""
        return torch.ones_like(self.mu) if self.jcb is None else self.jcb


class Innovation(NamedTuple):
    """Normalised differences between posterior and prior, for the means and for the variances.

    Parameters
    ----------
    mu, var : innovations of the means and of the variances

    Examples
    --------
    >>> gridwise.tagi.nn.Innovation(torch.zeros(2), torch.zeros(2)).var
    tensor([0., 0.])
    """

    mu: Tensor
    var: Tensor

    def reshape(self, *shape: int) -> Innovation:
        return Innovation(self.mu.reshape(shape), self.var.reshape(shape))

    def plus(self, other: Innovation | None) -> Innovation:
        """The sum of the innovations from two consumers of the same units; None counts as zero."""
        return self if other is None else Innovation(self.mu + other.mu, self.var + other.var)

    def through(self, jcb: Tensor | None) -> Innovation:
        """The innovation of z, from the innovation of a = activation(z) with Jacobian `jcb`."""
        if jcb is None:
            return self
        return Innovation(self.mu * jcb, self.var * (jcb * jcb))
