"""Initial means and variances of the parameters.

He      scale = sqrt(1 / fan_in)                    (not sqrt(2 / fan_in): the variance of the weights adds the rest)
Xavier  scale = sqrt(2 / (fan_in + fan_out))
mu ~ N(0, scale**2),   var = (gain * scale)**2      (the gain widens what is uncertain, not where it starts)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...errors import PartitionError


def scale_of(method: str, fan_in: int, fan_out: int) -> float:
    """The standard deviation of `method` for a layer with these fans."""
    known = {"he": 1.0 / max(fan_in, 1), "xavier": 2.0 / max(fan_in + fan_out, 1)}
    if method.lower() not in known:
        raise PartitionError(f"`init_method` (={method!r}) is not known.\n  fix: 'He' or 'Xavier'.")
    return math.sqrt(known[method.lower()])


def gaussian_pair(shape: tuple[int, ...], scale: float, gain: float) -> tuple[nn.Parameter, nn.Parameter]:
    """Parameters (mean, variance) of `shape`; the means are drawn from torch's default generator."""
    return frozen(torch.randn(shape) * scale), frozen(torch.full(shape, (gain * scale) ** 2))


def gaussian_parameters(
    weight: tuple[int, ...],
    bias: tuple[int, ...] | None,
    scale: float,
    gain_weight: float = 1.0,
    gain_bias: float = 1.0,
) -> dict[str, nn.Parameter]:
    """Means and variances of weights and, unless their shape is None, of biases."""
    out = dict(zip(("mu_w", "var_w"), gaussian_pair(weight, scale, gain_weight), strict=True))
    if bias is not None:
        out["mu_b"], out["var_b"] = gaussian_pair(bias, scale, gain_bias)
    return out


def frozen(value: Tensor) -> nn.Parameter:
    """A parameter that closed-form updates change and autograd does not."""
    return nn.Parameter(value, requires_grad=False)
