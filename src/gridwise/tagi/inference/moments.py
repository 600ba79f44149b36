"""Closed-form moments of activations: (m, v) of z  ->  (mean, variance, Jacobian) of a = f(z).

    Jacobian  J = Cov(a, z) / Var(z)
    Phi, phi  distribution and density of N(0, 1)

First order (sigmoid, tanh, softplus): a is linearised at m, so J = f'(m) and Var = J**2 v. The *mixture* activations
have the exact moments of piecewise linear functions, the exponential and the log-normal quotients (Remax, closed-form
softmax) the exact moments of log-normals. Every formula is tested against Monte Carlo.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .jumps import is_positive

TINY = 1e-6  # lower bound of the mean and variance of a mixture activation
_SMALLEST = 1e-30  # replaces a variance of zero in a denominator
_WIDE = 2.0  # the variance beyond which a sum of log-normals is far from log-normal


class Moments(NamedTuple):
    """Mean, variance and Jacobian of an activation."""

    mu: Tensor
    var: Tensor
    jcb: Tensor


def _cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


def _pdf(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


# ---- piecewise linear ------------------------------------------------------------------------------------------------
def relu(m: Tensor, v: Tensor) -> Moments:
    """max(z, 0), linearised at m."""
    on = is_positive(m).to(m.dtype)
    return Moments(torch.relu(m), v * on, on)


def leaky_relu(m: Tensor, v: Tensor, alpha: float) -> Moments:
    """z, or alpha z for negative z, linearised at m."""
    slope = torch.where(is_positive(m), 1.0, alpha).to(m.dtype)
    return Moments(m * slope, v * slope * slope, slope)


def mixture_relu(m: Tensor, v: Tensor) -> Moments:
    """The exact moments of max(z, 0); Var = v Phi - E[max(z, 0)] E[max(-z, 0)] avoids the square of a large mean."""
    sigma = v.clamp_min(_SMALLEST).sqrt()
    alpha = m / sigma
    cdf = _cdf(alpha)
    spread = sigma * _pdf(alpha)
    mu = m * cdf + spread
    var = v * cdf - mu * (spread - m * _cdf(-alpha))
    return Moments(mu.clamp_min(TINY), var.clamp_min(TINY), cdf)


def mixture_tanh(m: Tensor, v: Tensor) -> Moments:
    """The exact moments of z clipped to [-1, 1]."""
    mu, var, jcb = _clipped(m, v)
    return Moments(mu, var.clamp_min(TINY), jcb)


def mixture_sigmoid(m: Tensor, v: Tensor) -> Moments:
    """The exact moments of (1 + z clipped to [-1, 1]) / 2."""
    mu, var, jcb = _clipped(m, v)
    return Moments(0.5 * mu + 0.5, (0.25 * var).clamp_min(TINY), 0.5 * jcb)


def _clipped(m: Tensor, v: Tensor) -> Moments:
    """z clipped to [-1, 1]: moments about the clipped mean c, for |m|, and mirrored where m is negative.

    The distribution has three parts: beyond the near end 1, beyond the far end -1, and between the two.
    """
    sigma, size = v.clamp_min(_SMALLEST).sqrt(), m.abs()
    near, far = (1.0 - size) / sigma, (1.0 + size) / sigma
    beyond_near, beyond_far, between = _cdf(-near), _cdf(-far), _cdf(near) - _cdf(-far)
    spread_near, spread_far = sigma * _pdf(near), sigma * _pdf(far)
    c = size.clamp_max(1.0)
    over = size - c
    shift = beyond_near * (1.0 - c) - beyond_far * (1.0 + c) + over * between + spread_far - spread_near
    second = (
        beyond_near * (1.0 - c) ** 2
        + beyond_far * (1.0 + c) ** 2
        + between * (over * over + v)
        + spread_far * (2.0 * over - 1.0 - size)
        - spread_near * (2.0 * over + 1.0 - size)
    )
    return Moments(torch.sign(m) * (c + shift), second - shift * shift, between)


# ---- smooth, first order ---------------------------------------------------------------------------------------------
def sigmoid(m: Tensor, v: Tensor) -> Moments:
    mu = torch.sigmoid(m)
    jcb = mu * (1.0 - mu)
    return Moments(mu, jcb * jcb * v, jcb)


def tanh(m: Tensor, v: Tensor) -> Moments:
    mu = torch.tanh(m)
    jcb = 1.0 - mu * mu
    return Moments(mu, jcb * jcb * v, jcb)


def softplus(m: Tensor, v: Tensor) -> Moments:
    jcb = torch.sigmoid(m)
    return Moments(F.softplus(m), jcb * jcb * v, jcb)


def softmax(m: Tensor, v: Tensor) -> Moments:
    """Softmax over the last dim, linearised at m: da_i/dz_j = p_i (1[i=j] - p_j)."""
    p = torch.softmax(m, -1)
    others = (p * p * v).sum(-1, keepdim=True) - p * p * v
    own = (1.0 - p) ** 2 * v
    return Moments(p, p * p * (own + others), p * (1.0 - p))


def softmax_cutagi(m: Tensor, v: Tensor) -> Moments:
    """cuTAGI's softmax: every unit gets the variance of the largest one on top of its own."""
    p = torch.softmax(m, -1)
    jcb = p * (1.0 - p)
    of_largest = v.gather(-1, m.argmax(-1, keepdim=True))
    return Moments(p, jcb * jcb * (v + of_largest), jcb)


# ---- exponentials and log-normal quotients ---------------------------------------------------------------------------
def exponential(m: Tensor, v: Tensor) -> Moments:
    """The exact moments of exp(z), a log-normal; Cov(exp(z), z) = v E[exp(z)].

    They are capped before their squares overflow: in float32 at exp(33) for the largest variances, exp(44) for zero.
    """
    info = torch.finfo(m.dtype)
    limit = math.log(info.max) - 1.0
    v = v.clamp_max(0.25 * limit)
    mu = torch.exp(torch.minimum(m + 0.5 * v, 0.5 * (limit - v)).clamp_min(0.5 * math.log(info.tiny)))
    return Moments(mu, torch.expm1(v) * mu * mu, mu)


def closed_form_softmax(m: Tensor, v: Tensor) -> Moments:
    """exp(z_i) / sum exp(z_j), the sum taken as log-normal, the moments then limited to those of probabilities.

    Log-normals fit badly where variances are large: a sample with a variance beyond `_WIDE` has its z scaled down until
    the largest variance is `_WIDE`. For very large variances only the order of the z matters, which scaling preserves.
    Means are then divided by their sum, and variances limited to those of a quantity in [0, 1] with that mean.
    """
    shrink = (_WIDE / v.amax(-1, keepdim=True).clamp_min(_WIDE)).sqrt()
    mu, var, jcb = closed_form_softmax_cutagi(shrink * m, shrink * shrink * v)
    total = mu.sum(-1, keepdim=True)
    mu = mu / total
    var = torch.minimum(var / (total * total), mu * (1.0 - mu))
    return Moments(mu, var, torch.minimum(shrink * jcb / total, (var / v.clamp_min(_SMALLEST)).sqrt()))


def closed_form_softmax_cutagi(m: Tensor, v: Tensor) -> Moments:
    """exp(z_i) / sum exp(z_j), the sum taken as log-normal; infinite from variances of about 45 on.

    The largest mean is subtracted first: the quotient does not change and the exponentials of means cannot overflow.
    """
    m = m - m.amax(-1, keepdim=True)
    e, var_e, _ = exponential(m, v)
    total, var_total = e.sum(-1, keepdim=True), var_e.sum(-1, keepdim=True)
    var_log = torch.log1p(var_total / (total * total))
    mu_log = torch.log(total) - 0.5 * var_log
    cov = torch.log1p(torch.expm1(v) * (e / total))  # = log1p(var_e / (total e)), without 0 / 0
    var_quotient = (v + var_log - 2.0 * cov).clamp_min(0.0)
    mu = torch.exp(m - mu_log + 0.5 * var_quotient)
    return Moments(mu, torch.expm1(var_quotient) * mu * mu, mu * (v - cov) / v.clamp_min(_SMALLEST))


def remax(m: Tensor, v: Tensor, allowed: Tensor | None = None) -> Moments:
    """max(z_i, 0) / sum max(z_j, 0) over the last dim, numerator and sum taken as log-normals.

    Units that are not `allowed` (a mask) are left out of the sum and are exactly zero.
    """
    top, var_top, cdf = mixture_relu(m, v)
    if allowed is not None:
        top, var_top = top * allowed, var_top * allowed
    total, var_total = top.sum(-1, keepdim=True), var_top.sum(-1, keepdim=True)
    top = top.clamp_min(TINY)
    var_log, var_log_total = torch.log1p(var_top / (top * top)), torch.log1p(var_total / (total * total))
    cov = torch.log1p(var_top / (total * top))
    shift = torch.log(top / total) - 0.5 * (var_log - var_log_total)
    var_quotient = (var_log + var_log_total - 2.0 * cov).clamp_min(0.0)
    mu = torch.exp(shift + 0.5 * var_quotient).clamp_min(TINY)
    if allowed is not None:
        mu = mu * allowed
    mu = mu / mu.sum(-1, keepdim=True)
    var = torch.expm1(var_quotient) * mu * mu
    cov_with_top = torch.expm1(var_log - cov) * mu * top
    bound = torch.sqrt(var * v)
    covariance = torch.minimum(bound, cov_with_top / cdf.clamp_min(_SMALLEST))
    return Moments(mu, var, covariance / v.clamp_min(_SMALLEST))
