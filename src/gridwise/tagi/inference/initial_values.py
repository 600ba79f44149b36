"""Initial means and variances of the parameters.

He      scale = sqrt(1 / fan_in)                    (not sqrt(2 / fan_in): the weights' variance adds as much again)
Xavier  scale = sqrt(2 / (fan_in + fan_out))
mu ~ N(0, scale**2),   var = (gain * scale)**2      (the gain scales the uncertainty, not the initial means)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...errors import ArgumentError


def scale_of(method: str, fan_in: int, fan_out: int) -> float:
    """The initial standard deviation that `method` gives a layer with these fans."""
    known = {"he": 1.0 / max(fan_in, 1), "xavier": 2.0 / max(fan_in + fan_out, 1)}
    if method.lower() not in known:
        raise ArgumentError(f"`init_method` (={method!r}) is not known.\n  fix: 'He' or 'Xavier'.")
    return math.sqrt(known[method.lower()])


def gaussian_parameters(
    weight: tuple[int, ...], bias: tuple[int, ...] | None, scale: float, gain_weight: float, gain_bias: float
) -> dict[str, nn.Parameter]:
    """Means, drawn by torch's default generator, and variances of weights and, unless `bias` is None, of biases."""
    out = {}
    for name, shape, gain in (("w", weight, gain_weight), ("b", bias, gain_bias)):
        if shape is not None:
            out[f"mu_{name}"] = frozen(torch.randn(shape) * scale)
            out[f"var_{name}"] = frozen(torch.full(shape, (gain * scale) ** 2))
    return out


def frozen(value: Tensor) -> nn.Parameter:
    """A parameter for closed-form updates: autograd leaves it alone."""
    return nn.Parameter(value, requires_grad=False)
