"""The size of the noise: the value that maximises the likelihood of held-out observations.

A network predicts N(m, v) for the quantity itself; an observation of it adds noise of variance s. On held-out rows, v
is the uncertainty of the network, and s is what is left over:

    s = argmax  sum of w log N(y; m, v + s)        numbers; w are the rows' weights
    c = argmax  sum of w log P(label; m, v, c)     classes; c is the noise on a turn in the tree of classes

Both are one-dimensional maxima, found on a logarithmic grid that is refined twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

LEAST, LARGEST = 1e-3, 3.0
"""The range of standard deviations tried, relative to that of the observations."""

UNKNOWN = 0.5
"""The initial guess of the noise variance, relative to the variance of the observations."""

_POINTS = 25


def likeliest(score: Callable[[float], float], low: float = LEAST, high: float = LARGEST) -> float:
    """The value between `low` and `high` with the largest score."""
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
    """The likeliest noise variance of each column; y is NaN where missing, and there is one weight per row."""
    out = []
    for column in range(y.shape[1]):
        known = ~torch.isnan(y[:, column])
        mean, var, observed = (t[known, column] for t in (m, v, y))
        out.append(_noise_of_column(mean, var, observed, weight[known]) if len(observed) else UNKNOWN)
    return torch.tensor(out, dtype=m.dtype)


def _noise_of_column(m: Tensor, v: Tensor, y: Tensor, weight: Tensor) -> float:
    return likeliest(lambda s: float((weight * log_density(m, v, y, s * s)).sum())) ** 2


def mean_log_density(m: Tensor, v: Tensor, y: Tensor, s: Tensor, weight: Tensor) -> float:
    """The weighted mean of log N(y; m, v + s) over the values that are not missing."""
    density, w = log_density(m, v, y, s), weight[:, None] * ~torch.isnan(y)
    return float((torch.nan_to_num(density) * w).sum() / w.sum().clamp_min(1e-30))
