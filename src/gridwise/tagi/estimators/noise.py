"""How large the noise is: the size that makes observations likeliest that the network has not learnt from.

A network predicts N(m, v) for the quantity itself; an observation of it has noise of variance s on top. On rows that were
held out, v tells what the network does not know, and s is what is left over:

    s = argmax  sum of w log N(y; m, v + s)        numbers; w are the rows' weights
    c = argmax  sum of w log P(label; m, v, c)     classes; c is the noise of a turn in the tree of classes

Both are maxima over one number, found on a grid of logarithms and refined on a finer one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

LEAST, LARGEST = 1e-3, 3.0
"""Standard deviations of noise that are tried, in parts of the standard deviation of the observations."""

UNKNOWN = 0.5
"""The variance of noise of which nothing is known yet, in parts of the variance of the observations."""

_POINTS = 25


def likeliest(score: Callable[[float], float], low: float = LEAST, high: float = LARGEST) -> float:
    """The number between `low` and `high` with the largest score."""
    best = math.sqrt(low * high)
    for _ in range(3):
        tried = torch.logspace(math.log10(low), math.log10(high), _POINTS, dtype=torch.float64).tolist()
        best = max(tried, key=score)
        step = tried[1] / tried[0]
        low, high = max(best / step, low), min(best * step, high)
    return best


def log_density(m: Tensor, v: Tensor, y: Tensor, s: Tensor | float) -> Tensor:
    """log N(y; m, v + s)."""
    total = v + s
    return -0.5 * (torch.log(2.0 * math.pi * total) + (y - m) ** 2 / total)


def noise_of_numbers(m: Tensor, v: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The likeliest variance of the noise of each column; y is NaN where it is missing, weight has a value for each row."""
    out = []
    for column in range(y.shape[1]):
        known = ~torch.isnan(y[:, column])
        mean, var, observed = (t[known, column] for t in (m, v, y))
        out.append(_noise_of_column(mean, var, observed, weight[known]) if len(observed) else UNKNOWN)
    return torch.tensor(out, dtype=m.dtype)


def _noise_of_column(m: Tensor, v: Tensor, y: Tensor, weight: Tensor) -> float:
    return likeliest(lambda s: float((weight * log_density(m, v, y, s * s)).sum())) ** 2


def mean_log_density(m: Tensor, v: Tensor, y: Tensor, s: Tensor, weight: Tensor) -> float:
    """The weighted mean of log N(y; m, v + s) over what is not missing."""
    density, w = log_density(m, v, y, s), weight[:, None] * ~torch.isnan(y)
    return float((torch.nan_to_num(density) * w).sum() / w.sum().clamp_min(1e-30))
