"""`compat='cutagi'`: the original's quirks, written out from its formulas, and that they are off by default."""

from __future__ import annotations

import pytest
import torch

import gridwise.tagi.nn as nn

D = torch.float64


def _gaussian(*shape: int) -> nn.Gaussian:
    return nn.Gaussian(torch.randn(shape, dtype=D), torch.rand(shape, dtype=D) + 0.1, torch.rand(shape, dtype=D))


def _quirky(layer: nn.BaseLayer) -> nn.BaseLayer:
    layer.compat = "cutagi"
    return layer.double()


def test_rms_norm() -> None:
    layer, x = _quirky(nn.RMSNorm([4])), _gaussian(3, 4)
    m, v = x.mu, x.variance()
    i = ((m * m).mean(1, keepdim=True) + 1e-6).rsqrt()
    w, s = layer.mu_w.clone(), layer.var_w.clone()
    out = layer.forward(x)
    torch.testing.assert_close(out.variance(), v * i * i * (v * (s + w * w) + s * m * m))
    d = nn.Innovation(torch.randn(3, 4, dtype=D) * 0.01, -torch.rand(3, 4, dtype=D) * 0.01)
    back = layer.backward(d)
    torch.testing.assert_close(back.mu, i * w * d.mu)  # without the Jacobian of the input
    layer.step()
    torch.testing.assert_close(layer.mu_w.data, w + (i * m * d.mu).sum(0))  # without the variances, cap factor one
    torch.testing.assert_close(layer.var_w.data, s + ((i * m) ** 2 * d.var).sum(0))


def test_softmax_adds_the_variance_of_the_largest_unit() -> None:
    x = _gaussian(2, 4)
    p = torch.softmax(x.mu, -1)
    largest = torch.stack([x.variance()[n, x.mu[n].argmax()] for n in range(2)])[:, None]
    out = _quirky(nn.Softmax()).forward(x)
    torch.testing.assert_close(out.variance(), (p * (1 - p)) ** 2 * (x.variance() + largest))
    assert not torch.allclose(nn.Softmax().forward(x).variance(), out.variance())


def test_even_exp_has_covariances_for_jacobians() -> None:
    x = _gaussian(2, 4)._replace(jcb=None)
    mean = torch.exp(x.mu + x.variance() / 2)[:, 1::2]
    torch.testing.assert_close(nn.EvenExp().forward(x).jcb[:, 1::2], mean)
    torch.testing.assert_close(_quirky(nn.EvenExp()).forward(x).jcb[:, 1::2], mean * x.variance()[:, 1::2])


def test_the_last_of_two_activations_decides() -> None:
    x = _gaussian(2, 3)
    alone = nn.Tanh().forward(x._replace(jcb=None)).jcb
    torch.testing.assert_close(_quirky(nn.Tanh()).forward(x).jcb, alone)
    torch.testing.assert_close(nn.Tanh().forward(x).jcb, alone * x.jacobian())


@pytest.mark.parametrize("compat", [None, "cutagi"])
def test_embedding_sums_pile_up_only_in_the_original(compat: str | None) -> None:
    torch.manual_seed(0)
    layer = nn.Embedding(3, 2).double()
    layer.compat = compat
    d = nn.Innovation(torch.full((1, 1, 2), 1e-3, dtype=D), torch.full((1, 1, 2), -1e-3, dtype=D))
    rows = []
    for index in (0.0, 1.0):
        layer.forward(nn.Gaussian(torch.tensor([[index]], dtype=D)))
        layer.backward(d)
        layer.step()
        rows.append(layer.mu_w[0].clone())
    assert torch.equal(rows[0], rows[1]) == (compat is None)


def test_lstm_steps_do_not_see_one_another_in_the_original() -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(2, 3, 4).double(), _gaussian(2, 4, 2)
    recurrent = layer.forward(x).mu
    layer.compat = "cutagi"
    turned = layer.forward(nn.Gaussian(*(t.flip(1) for t in x))).mu
    torch.testing.assert_close(layer.forward(x).mu, turned.flip(1))
    torch.testing.assert_close(layer.forward(x).mu[:, 0], recurrent[:, 0])
    assert not torch.allclose(layer.forward(x).mu[:, 1:], recurrent[:, 1:])
