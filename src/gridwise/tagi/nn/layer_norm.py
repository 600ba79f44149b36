"""Normalisation of each sample separately: LayerNorm and RMSNorm.

LayerNorm, over the n units of a sample (the last dim, or channel x height x width):

    mean = sum(m) / n       variance = (sum((m - mean)**2) + sum(v)) / (n - 1)       i = 1 / sqrt(variance + eps)

and then the moments and innovations of batch_norm.py, with x = i (m - mean). RMSNorm has no mean and no bias:

    r = sum(m**2 + v) / n = E[x**2]       i = 1 / sqrt(r + eps)
    mu_z = i m W                          var_z = i**2 (v (W**2 + S) + m**2 S)
    delta_in = (i W J) delta              s1 = sum(i m delta),  s2 = sum((i m)**2 Delta)
"""

from __future__ import annotations

import torch

from ...errors import ArgumentError
from ..inference.products import wide_type
from .base_layer import Sums
from .batch_norm import AffineNorm
from .gaussian import Gaussian


class _SampleNorm(AffineNorm):
    """Base of LayerNorm and RMSNorm: the dims that are normalised."""

    def __init__(self, normalized_shape: list[int] | tuple[int, ...] | int, eps: float, bias: bool) -> None:
        super().__init__(bias=bias)
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if len(shape) not in (1, 3):
            raise ArgumentError(
                f"{type(self).__name__}: `normalized_shape` (={list(shape)}) has {len(shape)} entries.\n"
                "  fix: [units], or [channels, height, width] for images."
            )
        self.normalized_shape, self.eps = shape, eps
        self.init_weight_bias()

    def _channels(self) -> int:
        return self.normalized_shape[0]

    def _dims(self, shape: torch.Size) -> list[int]:
        """The dims to normalise over, the last ones; the weights are along the first of them."""
        k = len(self.normalized_shape)
        if shape[-k:].numel() != torch.Size(self.normalized_shape).numel() or (k == 3 and len(shape) != 4):
            raise ArgumentError(
                f"{type(self).__name__}: the input of shape {tuple(shape)} does not end in `normalized_shape` "
                f"(={list(self.normalized_shape)})."
            )
        return list(range(len(shape) - k, len(shape)))


class LayerNorm(_SampleNorm):
    """Normalisation of each sample over its units.

    Parameters
    ----------
    normalized_shape
        [units] with weights per unit, or [channels, height, width] with weights per channel.
    eps
        Added to the variance.
    bias
        Whether there is an additive bias.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm([4]))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (8,)
    """

    def __init__(self, normalized_shape: list[int] | tuple[int, ...] | int, eps: float = 1e-4, bias: bool = True):
        super().__init__(normalized_shape, eps, bias)

    def forward(self, x: Gaussian) -> Gaussian:
        dims = self._dims(x.mu.shape)
        n = torch.Size(self.normalized_shape).numel()
        centred = x.mu - x.mu.mean(dims, keepdim=True, dtype=wide_type(x.mu.dtype))
        squares = centred.square() if x.var is None else torch.addcmul(x.var.to(centred.dtype), centred, centred)
        inverse = torch.rsqrt(squares.sum(dims, keepdim=True) / max(n - 1, 1) + self.eps)
        return self._moments(x, (centred * inverse).to(x.mu.dtype), inverse.to(x.mu.dtype), dims[0])


class RMSNorm(_SampleNorm):
    """Division of each sample by its root mean square.

    Parameters
    ----------
    normalized_shape
        [units].
    eps
        Added to the mean square.

    Notes
    -----
    `compat='cutagi'` reproduces the original: the mean square of the means alone, a variance with an extra factor v,
    innovations without the input's Jacobian, sums without the variances of the weights, and a cap factor of one.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.RMSNorm([4]))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (8,)
    """

    def __init__(self, normalized_shape: list[int] | tuple[int, ...] | int, eps: float = 1e-6) -> None:
        super().__init__(normalized_shape, eps, bias=False)
        if len(self.normalized_shape) != 1:
            raise ArgumentError(f"RMSNorm: `normalized_shape` (={list(self.normalized_shape)}) has one entry: [units].")

    def forward(self, x: Gaussian) -> Gaussian:
        dims = self._dims(x.mu.shape)
        quirks = self.compat == "cutagi"
        mu = x.mu.to(wide_type(x.mu.dtype))
        squares = mu * mu if x.var is None or quirks else torch.addcmul(x.var.to(mu.dtype), mu, mu)
        inverse = torch.rsqrt(squares.mean(dims, keepdim=True) + self.eps).to(x.mu.dtype)
        out = self._moments(x._replace(jcb=None) if quirks else x, x.mu * inverse, inverse, dims[0])
        if not quirks:
            return out
        v = x.variance()
        raw = v * (self.var_w + self.mu_w**2) + self.var_w * x.mu**2
        return Gaussian(out.mu, v * inverse**2 * raw)

    def cap_value(self) -> float | None:
        return 1.0 if self.compat == "cutagi" else super().cap_value()

    def _final_sums(self) -> dict[str, Sums]:
        if self.compat != "cutagi" or "w" not in self.sums:
            return self.sums
        s1, s2 = self.sums["w"]
        return self.sums | {"w": (s1 / self.var_w, s2 / self.var_w**2)}
