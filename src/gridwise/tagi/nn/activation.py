"""Activation layers: they keep the shape, have no parameters, and pass their Jacobian to the next layer.

An activation does nothing in backward: the innovations that arrive already refer to its input, because the consumer of
its output has multiplied them by the Jacobian (see gaussian.py). Consecutive activations multiply their Jacobians; with
`compat='cutagi'` the last one replaces the others, as in the original.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import ArgumentError
from ...nn.docstrings import documented_like
from ..inference import moments
from ..inference.moments import Moments
from .base_layer import BaseLayer
from .gaussian import Gaussian


class Activation(BaseLayer):
    """Base of the activations: a subclass sets `function`, of means and variances, or overrides `moments`."""

    reusable = True
    function: ClassVar[Callable[[Tensor, Tensor], Moments]]

    def moments(self, m: Tensor, v: Tensor) -> Moments:
        return type(self).function(m, v)

    def forward(self, x: Gaussian) -> Gaussian:
        mu, var, jcb = self.moments(x.mu, x.variance())
        if x.jcb is not None and self.compat != "cutagi":
            jcb = jcb * x.jcb
        return Gaussian(mu, var, jcb)


class ReLU(Activation):
    """max(z, 0), linearised at the mean.

    Parameters
    ----------
    input_size, output_size : set by the network when it is built

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape, bool((var >= 0).all())
    ((8,), True)
    """

    function = moments.relu


class LeakyReLU(Activation):
    """z for positive z, `alpha` z otherwise, linearised at the mean.

    Parameters
    ----------
    alpha : the slope below zero

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.1))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (8,)
    """

    def __init__(self, alpha: float = 0.1) -> None:
        super().__init__()
        self.alpha = alpha

    def moments(self, m: Tensor, v: Tensor) -> Moments:
        return moments.leaky_relu(m, v, self.alpha)


@documented_like(ReLU)
class Sigmoid(Activation):
    """The logistic function, linearised at the mean."""

    function = moments.sigmoid


@documented_like(ReLU)
class Tanh(Activation):
    """The hyperbolic tangent, linearised at the mean."""

    function = moments.tanh


@documented_like(ReLU)
class Softplus(Activation):
    """log(1 + exp(z)), linearised at the mean."""

    function = moments.softplus


@documented_like(ReLU)
class MixtureReLU(Activation):
    """max(z, 0) with exact moments."""

    function = moments.mixture_relu


@documented_like(ReLU)
class MixtureSigmoid(Activation):
    """(1 + clip(z, -1, 1)) / 2 with exact moments."""

    function = moments.mixture_sigmoid


@documented_like(ReLU)
class MixtureTanh(Activation):
    """clip(z, -1, 1) with exact moments."""

    function = moments.mixture_tanh


@documented_like(ReLU)
class Softmax(Activation):
    """Softmax over the last dim, linearised at the means.

    With `compat='cutagi'` the variance is the original's, which adds the variance of the largest unit to every unit.
    """

    def moments(self, m: Tensor, v: Tensor) -> Moments:
        return moments.softmax_cutagi(m, v) if self.compat == "cutagi" else moments.softmax(m, v)


@documented_like(ReLU)
class Remax(Activation):
    """max(z_i, 0) / sum max(z_j, 0) over the last dim: probabilities with closed-form moments."""

    function = moments.remax


@documented_like(ReLU)
class ClosedFormSoftmax(Activation):
    """exp(z_i) / sum exp(z_j) over the last dim: probabilities with log-normal moments.

    With `compat='cutagi'` they are those of the original, which do not add up to one and overflow for large variances.
    """

    def moments(self, m: Tensor, v: Tensor) -> Moments:
        return (moments.closed_form_softmax_cutagi if self.compat == "cutagi" else moments.closed_form_softmax)(m, v)


@documented_like(ReLU)
class EvenExp(Activation):
    """exp(z) on the odd units 1, 3, ... and z itself on the even ones 0, 2, ...

    The last layer of heteroscedastic regression: even units are means, odd ones the variances of the noise.
    With `compat='cutagi'` the odd Jacobians are covariances, as in the original's release (corrected there since).
    """

    def forward(self, x: Gaussian) -> Gaussian:
        even, odd = halves(x, "EvenExp")
        mu, var, jcb = moments.exponential(odd.mu, odd.variance())
        jcb = odd.variance() * mu if self.compat == "cutagi" else jcb * odd.jacobian()
        return joined(even, Gaussian(mu, var, jcb))


class Exp(Activation):
    """exp(scale z + shift), a log-normal, with exact moments.

    With `compat='cutagi'` neither the mean nor the variance is less than 1e-6, as in the original.

    Parameters
    ----------
    scale, shift : factor and offset in the exponent

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.Exp())
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (4,)
    """

    def __init__(self, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift

    def moments(self, m: Tensor, v: Tensor) -> Moments:
        mu, var, jcb = moments.exponential(self.scale * m + self.shift, self.scale**2 * v)
        if self.compat == "cutagi":
            mu, var, jcb = mu.clamp_min(moments.TINY), var.clamp_min(moments.TINY), jcb.clamp_min(moments.TINY)
        return Moments(mu, var, self.scale * jcb)


class SplitActivation(Activation):
    """One activation on the odd units 1, 3, ... and another, or none, on the even ones 0, 2, ...

    Parameters
    ----------
    odd_layer
        The activation of the odd units.
    even_layer
        The activation of the even units; None for the identity.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.SplitActivation(nn.Exp()))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (4,)
    """

    def __init__(self, odd_layer: Activation, even_layer: Activation | None = None) -> None:
        super().__init__()
        for layer in (odd_layer, even_layer):
            if not isinstance(layer, Activation | None):
                raise ArgumentError(f"SplitActivation: {layer.get_layer_info()} is not an activation.")
        self.odd_layer, self.even_layer = odd_layer, even_layer

    def forward(self, x: Gaussian) -> Gaussian:
        even, odd = halves(x, "SplitActivation")
        odd = self.odd_layer.forward(odd)
        even = even if self.even_layer is None else self.even_layer.forward(even)
        return joined(even, odd)


def halves(x: Gaussian, name: str) -> tuple[Gaussian, Gaussian]:
    """The even and the odd units of the last dim."""
    if x.mu.shape[-1] % 2:
        raise ArgumentError(
            f"{name}: the input of shape {tuple(x.mu.shape)} has an odd number of units.\n"
            "  fix: two units for every observed quantity, its mean and the log of its noise variance."
        )
    return x.map(lambda t: t[..., 0::2]), x.map(lambda t: t[..., 1::2])


def joined(even: Gaussian, odd: Gaussian) -> Gaussian:
    """The inverse of `halves`."""
    pairs = (even.mu, odd.mu), (even.variance(), odd.variance()), (even.jacobian(), odd.jacobian())
    return Gaussian(*(interleaved(*pair) for pair in pairs))


def interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """The units of both, alternating."""
    return torch.stack((even, odd), -1).flatten(-2)
