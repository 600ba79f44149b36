"""Every forward moment against Monte Carlo: means, variances and Jacobians of activations and layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gridwise.tagi.nn as nn
from gridwise.tagi.inference import moments

SAMPLES = 200_000


def _sampled(f: Callable[[Tensor], Tensor], m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of f(z), and Cov(f(z), z) / Var(z), for z ~ N(m, v)."""
    z = m + v.sqrt() * torch.randn(SAMPLES, *m.shape, dtype=m.dtype)
    a = f(z)
    jcb = ((a - a.mean(0)) * (z - m)).mean(0) / v
    return a.mean(0), a.var(0), jcb


EXACT = {
    "mixture_relu": (moments.mixture_relu, torch.relu),
    "mixture_tanh": (moments.mixture_tanh, lambda z: z.clamp(-1, 1)),
    "mixture_sigmoid": (moments.mixture_sigmoid, lambda z: 0.5 + 0.5 * z.clamp(-1, 1)),
    "exponential": (moments.exponential, torch.exp),
}
FIRST_ORDER = {
    "relu": (moments.relu, torch.relu),
    "leaky_relu": (lambda m, v: moments.leaky_relu(m, v, 0.1), lambda z: F.leaky_relu(z, 0.1)),
    "sigmoid": (moments.sigmoid, torch.sigmoid),
    "tanh": (moments.tanh, torch.tanh),
    "softplus": (moments.softplus, F.softplus),
    "softmax": (moments.softmax, lambda z: torch.softmax(z, -1)),
    "closed_form_softmax": (moments.closed_form_softmax, lambda z: torch.softmax(z, -1)),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_moments(name: str) -> None:
    torch.manual_seed(1)
    formula, f = EXACT[name]
    m = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)
    v = torch.tensor([0.05, 0.2, 0.6, 0.3, 0.1, 0.4, 0.5], dtype=torch.float64)
    for got, want in zip(formula(m, v), _sampled(f, m, v), strict=True):
        torch.testing.assert_close(got, want, rtol=0.02, atol=4e-3)


@pytest.mark.parametrize("name", ["mixture_relu", "mixture_tanh", "mixture_sigmoid"])
def test_large_means_leave_small_variances_as_they_are(name: str) -> None:
    """In float32 as in float64, and there as sums over a fine grid say."""
    formula, f = EXACT[name]
    means = torch.tensor([0.0, -0.6, 0.99, -3.0, 8.0, -30.0, 100.0, 1e4], dtype=torch.float64)
    m, v = (t.flatten() for t in torch.meshgrid(means, torch.tensor([1e-4, 1e-2, 1.0, 50.0]).double(), indexing="ij"))
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    weight = torch.exp(-0.5 * z * z)
    weight = weight / weight.sum()
    a = f(m + v.sqrt() * z)
    mean = (a * weight).sum(0)
    var, jcb = ((a - mean) ** 2 * weight).sum(0), ((a - mean) * z * weight).sum(0) / v.sqrt()
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.float32, 2e-4)):
        got = formula(m.to(dtype), v.to(dtype))
        for mine, want in zip(got, (mean, var, jcb), strict=True):
            torch.testing.assert_close(mine.double(), want, rtol=tolerance, atol=2e-6)


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_first_order_moments_are_right_for_small_variances(name: str) -> None:
    torch.manual_seed(2)
    formula, f = FIRST_ORDER[name]
    m = torch.tensor([-1.4, -0.8, -0.4, 0.5, 0.9, 1.6], dtype=torch.float64)
    v = torch.full_like(m, 1e-4)
    for got, want in zip(formula(m, v), _sampled(f, m, v), strict=True):
        torch.testing.assert_close(got, want, rtol=0.02, atol=1e-6 + 5e-3 * float(want.abs().max()))


def test_remax_is_a_distribution_with_the_right_moments() -> None:
    torch.manual_seed(3)
    m = torch.tensor([0.9, 1.4, 2.0, 1.1], dtype=torch.float64)
    v = torch.full_like(m, 0.01)
    mu, var, jcb = moments.remax(m, v)
    assert float(mu.sum()) == pytest.approx(1.0)
    want = _sampled(lambda z: torch.relu(z) / torch.relu(z).sum(-1, keepdim=True), m, v)
    torch.testing.assert_close(mu, want[0], rtol=0.01, atol=0)
    torch.testing.assert_close(var, want[1], rtol=0.05, atol=0)
    torch.testing.assert_close(jcb, want[2], rtol=0.05, atol=0)


def test_remax_leaves_masked_units_out() -> None:
    m, v = torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64)
    allowed = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    masked = moments.remax(m, v, allowed)
    alone = moments.remax(m[:, [0, 1, 3]], v[:, [0, 1, 3]])
    for got, want in zip(masked, alone, strict=True):
        torch.testing.assert_close(got[:, [0, 1, 3]], want)
        assert not got[:, 2].any()


def test_closed_form_softmax_does_not_overflow() -> None:
    m = torch.tensor([[300.0, 299.0, -300.0]])
    mu, var, jcb = moments.closed_form_softmax(m, torch.full_like(m, 0.1))
    assert all(torch.isfinite(t).all() for t in (mu, var, jcb))
    assert float(mu.sum()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("name", ["mixture_relu", "mixture_tanh", "mixture_sigmoid", "remax", "closed_form_softmax"])
def test_zero_variance_gives_the_function_itself(name: str) -> None:
    m = torch.tensor([[-2.0, 0.0, 0.5, 3.0]])
    mu, var, jcb = getattr(moments, name)(m, torch.zeros_like(m))
    assert all(torch.isfinite(t).all() for t in (mu, var, jcb))
    assert (var <= 1.001e-6).all()


# ---- layers: the parameters are sampled as well ----------------------------------------------------------------------
def _sample_layer(layer: nn.BaseLayer, x: nn.Gaussian, f: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Moments of f(x, w, b) over samples of the input and of the layer's parameters."""
    total, squares, rounds = 0.0, 0.0, 10_000
    for _ in range(rounds // 500):
        draw = [
            torch.stack([mu + var.sqrt() * torch.randn_like(mu) for _ in range(500)])
            for mu, var in ((x.mu, x.variance()), (layer.mu_w, layer.var_w), (layer.mu_b, layer.var_b))
        ]
        y = torch.func.vmap(f)(*draw)
        total, squares = total + y.sum(0), squares + (y * y).sum(0)
    mean = total / rounds
    return mean, squares / rounds - mean * mean


LAYERS = {
    "linear": (lambda: nn.Linear(6, 3), (2, 6), F.linear),
    "conv": (lambda: nn.Conv2d(2, 2, (2, 3), padding=1), (1, 2, 4, 5), lambda x, w, b: F.conv2d(x, w, b, padding=1)),
    "conv_transpose": (
        lambda: nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1),
        (1, 2, 3, 4),
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_with_uncertain_inputs_and_weights(name: str) -> None:
    torch.manual_seed(4)
    make, shape, f = LAYERS[name]
    layer = make().double()
    x = nn.Gaussian(torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64))
    out = layer.forward(x)
    mean, var = _sample_layer(layer, x, f)
    assert (out.mu - mean).abs().max() < 5 * (out.variance().max() / 10_000).sqrt()
    torch.testing.assert_close(out.variance(), var, rtol=0.08, atol=0)


def test_lstm_moments_for_small_variances() -> None:
    """First order in the gates: exact as the variances go to zero, over a whole sequence."""
    torch.manual_seed(5)
    layer = nn.LSTM(2, 3, 4).double()
    layer.var_w.mul_(1e-3)
    layer.var_b.mul_(1e-3)
    shape = (1, 4, 2)
    x = nn.Gaussian(torch.randn(shape, dtype=torch.float64), torch.full(shape, 1e-3, dtype=torch.float64))
    out = layer.forward(x)

    def run(z: Tensor, w: Tensor, b: Tensor) -> Tensor:
        h = c = z.new_zeros(1, 3)
        rows = []
        for t in range(4):
            f, i, g, o = torch.einsum("bj,qkj->qbk", torch.cat((z[:, t], h), -1), w) + b[:, None]
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            rows.append(h)
        return torch.stack(rows, 1)

    mean, var = _sample_layer(layer, x, run)
    torch.testing.assert_close(out.mu, mean, rtol=0.02, atol=2e-3)
    # Over time the units of h correlate, which a diagonal approximation leaves out: exact at first, close after.
    torch.testing.assert_close(out.variance()[:, 0], var[:, 0], rtol=0.05, atol=1e-6)
    assert ((out.variance() / var) > 0.3).all()
    assert ((out.variance() / var) < 2.0).all()


def test_attention_moments() -> None:
    """Scores from sampled queries and keys; the output from sampled values and independently sampled weights."""
    torch.manual_seed(6)
    layer = nn.MultiheadAttention(4, 2).double()
    x = nn.Gaussian(torch.rand(1, 3, 4, dtype=torch.float64) + 0.5)
    z = layer.qkv.forward(x)
    out = layer.forward(x)
    draw = z.mu + z.variance().sqrt() * torch.randn(100_000, 3, 12, dtype=torch.float64)
    q, k, v = draw.unflatten(-1, (6, 2)).transpose(1, 2).split(2, 1)

    def turned(y: Tensor) -> Tensor:  # a head has one pair of units: a complex number, turned by t radians
        turn = torch.polar(torch.ones(3, dtype=torch.float64), torch.arange(3.0, dtype=torch.float64))[:, None]
        return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (1, 2)).contiguous()) * turn).flatten(-2)

    scores = turned(q) @ turned(k).mT / 2**0.5
    a, a_var, _ = moments.remax(scores.mean(0), scores.var(0), torch.ones(3, 3, dtype=torch.float64).tril())
    weights = a + a_var.sqrt() * torch.randn(100_000, 2, 3, 3, dtype=torch.float64)
    y = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(out.mu[0], y.mean(0), rtol=0.02, atol=0.02)
    torch.testing.assert_close(out.variance()[0], y.var(0), rtol=0.05, atol=1e-3)
