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

import numpy as np
import torch
from torch import Tensor

from ...metric import half_width

LEAST, LARGEST = 1e-3, 3.0
"""The range of standard deviations tried, relative to that of the observations."""

UNKNOWN = 0.5
"""The initial guess of the noise variance, relative to the variance of the observations."""

FEWEST_BEYOND = 5
"""Held-out rows beyond the end of an interval that make it a quantile to rely on."""

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


def factor_of_noise(m: Tensor, v: Tensor, y: Tensor, noise: Tensor, weight: Tensor) -> Tensor:
    """The likeliest factor of each column of the noise variances (row, column), between 0.01 and 100."""
    out = []
    for column in range(y.shape[1]):
        known = ~torch.isnan(y[:, column])
        mean, var, observed, a, w = (*(t[known, column] for t in (m, v, y, noise)), weight[known])

        def score(s: float, parts: tuple[Tensor, ...] = (mean, var, observed, a, w)) -> float:
            mean, var, observed, a, w = parts
            return float((w * log_density(mean, var, observed, s * s * a)).sum())

        out.append(likeliest(score, 0.1, 10.0) ** 2 if len(observed) else 1.0)
    return torch.tensor(out, dtype=m.dtype)


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


def ends_of(residuals: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the interval of `level` in standard deviations, for each column of held-out residuals (row, column).

    They are quantiles of the residuals, if at least `FEWEST_BEYOND` of these lie beyond each; otherwise the quantiles that
    have so many, or those of a Gaussian, whichever is further out.
    """
    reach, tail = half_width(level), 0.5 * (1.0 - level)
    ends = []
    for column in residuals.T:
        known = np.sort(column[~np.isnan(column)])
        least = FEWEST_BEYOND / max(len(known), 1)
        if least >= 0.5:
            ends.append((-reach, reach))
            continue
        low, high = np.quantile(known, [max(tail, least), 1.0 - max(tail, least)])
        ends.append((low, high) if tail >= least else (min(low, -reach), max(high, reach)))
    return np.array(ends).T[0], np.array(ends).T[1]


def mean_log_density(m: Tensor, v: Tensor, y: Tensor, s: Tensor, weight: Tensor) -> float:
    """The weighted mean of log N(y; m, v + s) over the values that are not missing."""
    density, w = log_density(m, v, y, s), weight[:, None] * ~torch.isnan(y)
    return float((torch.nan_to_num(density) * w).sum() / w.sum().clamp_min(1e-30))
