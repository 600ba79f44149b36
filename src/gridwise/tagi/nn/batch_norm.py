"""Batch normalisation of Gaussian units.

Per channel, over the N = batch x space units of the batch, the mean and the variance of the mixture of their Gaussians:

    mean = sum(m) / N                    i = 1 / sqrt(variance + eps)
    variance = (sum((m - mean)**2) + sum(v)) / (N - 1)

    mu_z  = x W + mu_b                   x = i (m - mean)
    var_z = i**2 v (W**2 + S) + x**2 S + var_b

    delta_in = (i W J) delta             s1 = sum(x delta)             the statistics count as constants
    Delta_in = (i W J)**2 Delta          s2 = sum(x**2 Delta)

Running statistics keep `momentum` of their old value; the first batch replaces their initial 0 and 1 entirely, and an
empty one changes nothing. A distributed network sets `all_sum` to add the sums up over its workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..inference.initial_values import frozen
from ..inference.products import wide_type
from ..inference.tracing import is_traced
from .base_layer import ParametricLayer
from .gaussian import Gaussian, Innovation


class AffineNorm(ParametricLayer):
    """Base of normalisation layers: a weight around one and a bias around zero for each channel or unit."""

    def _channels(self) -> int:
        raise NotImplementedError

    def _initial(self) -> dict[str, nn.Parameter]:
        n = self._channels()
        out = {"mu_w": torch.ones(n), "var_w": torch.full((n,), self.gain_weight**2 / n)}
        if self.bias:
            out |= {"mu_b": torch.zeros(n), "var_b": torch.full((n,), self.gain_bias**2 / n)}
        return {name: frozen(value) for name, value in out.items()}

    def _moments(self, x: Gaussian, normal: Tensor, inverse: Tensor, dim: int) -> Gaussian:
        """Moments of W x + b for an input normalised to N(`normal`, `inverse**2 var`); the channels are dim `dim`."""
        self._keep(normal, inverse, x.jcb, dim)
        shape = _along(dim, normal)
        w, s = self.mu_w.view(shape), self.var_w.view(shape)
        mu, variance = normal * w, normal * normal * s
        if x.var is not None:
            variance = torch.addcmul(variance, inverse * inverse * (w * w + s), x.var)
        if self.mu_b is not None and self.var_b is not None:
            mu, variance = mu + self.mu_b.view(shape), variance + self.var_b.view(shape)
        return Gaussian(mu, variance)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        normal, inverse, jcb, dim = self._recall()
        d = delta.reshape(*normal.shape)
        dims = _all_but(dim, normal)
        w = ((normal * d.mu).sum(dims), (normal * normal * d.var).sum(dims))
        self._sums_ready(normal.shape[0], w, (d.mu.sum(dims), d.var.sum(dims)))
        if not need_input:
            return None
        slope = inverse * self.mu_w.view(_along(dim, normal))
        return d.through(slope if jcb is None else slope * jcb)


class BatchNorm2d(AffineNorm):
    """Normalisation over the batch, of images (batch, channel, height, width) or units (batch, unit).

    Parameters
    ----------
    num_features
        Channels, or units.
    eps
        Added to the variance.
    momentum
        The fraction of the running statistics that is kept at each batch (one minus torch's momentum).
    bias
        Whether there is an additive bias.

    Notes
    -----
    `compat='cutagi'` lets the first batch move the running statistics by `1 - momentum` only, as the original does with
    more than one thread.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, in_width=8, in_height=8), nn.BatchNorm2d(4))
    >>> mu, var = net(np.ones((2, 3 * 8 * 8), dtype='float32'))
    >>> mu.shape
    (512,)
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
    ) -> None:
        super().__init__(bias=bias)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.gain_weight, self.gain_bias = gain_weight, gain_bias
        self.all_sum: Callable[[Tensor], Tensor] | None = None
        self.batch_statistics: tuple[Tensor, Tensor] | None = None
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.long))
        self.init_weight_bias()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"all_sum": None}

    def _channels(self) -> int:
        return self.num_features

    def forward(self, x: Gaussian) -> Gaussian:
        dim = 1 if x.mu.ndim == 4 else x.mu.ndim - 1
        if x.mu.shape[dim] != self.num_features:
            raise ArgumentError(
                f"BatchNorm2d: the input of shape {tuple(x.mu.shape)} has {x.mu.shape[dim]} channels, "
                f"`num_features` (={self.num_features})."
            )
        mean, variance = self._statistics(x, dim) if self.training else (self.running_mean, self.running_var)
        shape = _along(dim, x.mu)
        inverse = torch.rsqrt(variance + self.eps).view(shape)
        normal = (x.mu - mean.view(shape)) * inverse
        return self._moments(x, normal.to(x.mu.dtype), inverse.to(x.mu.dtype), dim)

    def _statistics(self, x: Gaussian, dim: int) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel, in a type that holds the sums."""
        count = x.mu.numel() / self.num_features
        total = x.mu.sum(_all_but(dim, x.mu), dtype=wide_type(x.mu.dtype))
        if self.all_sum is not None:
            gathered = self.all_sum(torch.cat((total, total.new_full((1,), count))))
            n = gathered[-1]
            mean = gathered[:-1] / n.clamp_min(1.0)
            squares = self.all_sum(self._squares(x, mean, dim))
            variance = squares / (n - 1).clamp_min(1.0)
            self._update_running(mean, variance, n > 0)
        elif count:
            mean = total / count
            variance = self._squares(x, mean, dim) / max(count - 1.0, 1.0)
            self._update_running(mean, variance)
        else:
            return self.running_mean, self.running_var
        return mean, variance

    def _squares(self, x: Gaussian, mean: Tensor, dim: int) -> Tensor:
        dims = _all_but(dim, x.mu)
        squares = (x.mu - mean.view(_along(dim, x.mu))).square().sum(dims)
        return squares if x.var is None else squares + x.var.sum(dims, dtype=mean.dtype)

    def _update_running(self, mean: Tensor, variance: Tensor, some: Tensor | None = None) -> None:
        """Update the running statistics; `some`: whether any worker had samples."""
        keep: Tensor | float = self.momentum
        if self.compat != "cutagi":
            keep = (self.num_batches > 0) * self.momentum
        if some is not None:
            keep = torch.where(some, keep, 1.0)
        self.num_batches += 1 if some is None else some
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            running.copy_(running * keep + now * (1.0 - keep))
        if not is_traced():
            self.batch_statistics = (mean, variance)


def _along(dim: int, x: Tensor) -> list[int]:
    """The shape under which a vector along `dim` broadcasts against `x`."""
    return [-1] + [1] * (x.ndim - dim - 1)


def _all_but(dim: int, x: Tensor) -> list[int]:
    return [d for d in range(x.ndim) if d != dim]
