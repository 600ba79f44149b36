"""Every layer's backward against a dense computation in float64 that shares no code with it.

For a layer that is linear in its input and in its parameters around the means, with dense Jacobians A = dz/dx and
B = dz/dw from torch's autograd: delta_in = A' delta, Delta_in = (A*A)' Delta, s1 = B' delta, s2 = (B*B)' Delta.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gridwise.tagi.nn as nn
from gridwise.errors import GridwiseError

D = torch.float64


def _input(*shape: int, with_jcb: bool = True) -> nn.Gaussian:
    jcb = torch.rand(shape, dtype=D) if with_jcb else None
    return nn.Gaussian(torch.randn(shape, dtype=D), torch.rand(shape, dtype=D), jcb)


def _innovation(like: Tensor) -> nn.Innovation:
    return nn.Innovation(torch.randn_like(like), -torch.rand_like(like))


def _dense(f: Callable[..., Tensor], d: nn.Innovation, *arguments: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(A' delta, (A*A)' Delta) for the Jacobian A of f with respect to each argument."""
    jacobians = torch.autograd.functional.jacobian(f, arguments)
    out = []
    for a, x in zip(jacobians, arguments, strict=True):
        a = a.reshape(-1, x.numel())
        out.append(((d.mu.reshape(-1) @ a).reshape(x.shape), (d.var.reshape(-1) @ (a * a)).reshape(x.shape)))
    return out


def _check(layer: nn.BaseLayer, x: nn.Gaussian, f: Callable[..., Tensor]) -> None:
    layer = layer.double()
    out = layer.forward(x)
    d = _innovation(out.mu)
    back = layer.backward(d)
    assert back is not None
    parameters = [p for p in (getattr(layer, "mu_w", None), getattr(layer, "mu_b", None)) if p is not None]
    at_input, *at_parameters = _dense(f, d, x.mu, *(p.detach() for p in parameters))
    jcb = x.jacobian()
    torch.testing.assert_close(back.mu, at_input[0] * jcb)
    torch.testing.assert_close(back.var, at_input[1] * jcb * jcb)
    for name, (s1, s2) in zip(("w", "b"), at_parameters, strict=False):
        torch.testing.assert_close(layer.sums[name][0].reshape(s1.shape), s1)
        torch.testing.assert_close(layer.sums[name][1].reshape(s2.shape), s2)
    if parameters:
        torch.testing.assert_close(layer.delta_mu_w, layer.var_w * at_parameters[0][0])
        torch.testing.assert_close(layer.delta_var_w, layer.var_w**2 * at_parameters[0][1])


@pytest.mark.parametrize("shape", [(3, 6), (2, 4, 6), (3, 2, 3, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: tuple[int, ...], bias: bool) -> None:
    def f(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return F.linear(x if x.ndim != 4 else x.flatten(1), w, b)

    _check(nn.Linear(6, 4, bias=bias), _input(*shape), f)


def _end_padded(x: Tensor, p: tuple[int, int]) -> Tensor:
    return F.pad(x, (0, p[1], 0, p[0]))


CONVOLUTIONS: dict[str, tuple[dict[str, Any], Callable[..., Tensor]]] = {
    "plain": ({}, F.conv2d),
    "stride": ({"stride": 2, "padding": 1}, lambda x, w, b: F.conv2d(x, w, b, 2, 1)),
    "rectangular": (
        {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 2)},
        lambda x, w, b: F.conv2d(x, w, b, (1, 2), (0, 2)),
    ),
    "dilated": ({"dilation": (2, 1)}, lambda x, w, b: F.conv2d(x, w, b, dilation=(2, 1))),
    "grouped": ({"groups": 2, "padding": 1}, lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2)),
    "end padding": (
        {"padding": (1, 2), "padding_type": 2, "stride": 2},
        lambda x, w, b: F.conv2d(_end_padded(x, (1, 2)), w, b, 2),
    ),
    "no padding": ({"padding": 1, "padding_type": 0}, F.conv2d),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(name: str) -> None:
    options, f = CONVOLUTIONS[name]
    _check(nn.Conv2d(2, 4, **{"kernel_size": 3, **options}), _input(2, 2, 6, 7), f)


TRANSPOSED: dict[str, tuple[dict[str, Any], Callable[..., Tensor]]] = {
    "plain": ({}, F.conv_transpose2d),
    "stride": ({"stride": 2, "padding": 1}, lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1)),
    "rectangular": (
        {"kernel_size": (4, 2), "stride": (2, 1)},
        lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 1)),
    ),
    "end cropping": (
        {"stride": 2, "padding": (1, 2), "padding_type": 2},
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2)[:, :, :-1, :-2],
    ),
    "dilated": ({"dilation": 2}, lambda x, w, b: F.conv_transpose2d(x, w, b, dilation=2)),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose2d(name: str) -> None:
    options, f = TRANSPOSED[name]
    _check(nn.ConvTranspose2d(2, 3, **{"kernel_size": 3, **options}), _input(2, 2, 3, 4), f)


POOLINGS: dict[str, tuple[nn.BaseLayer, Callable[[Tensor], Tensor]]] = {
    "average": (nn.AvgPool2d(2), lambda x: F.avg_pool2d(x, 2)),
    "average, overlapping": (nn.AvgPool2d((3, 2), (2, 1)), lambda x: F.avg_pool2d(x, (3, 2), (2, 1))),
    "average, padded": (nn.AvgPool2d(3, 2, 1, 1), lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "average, end padded": (nn.AvgPool2d(3, 2, 1, 2), lambda x: F.avg_pool2d(_end_padded(x, (1, 1)), 3, 2)),
    "largest mean": (nn.MaxPool2d(2, 2), lambda x: F.max_pool2d(x, 2, 2)),
    "largest mean, overlapping": (nn.MaxPool2d(3), lambda x: F.max_pool2d(x, 3, 1)),
    "largest mean, padded": (nn.MaxPool2d(3, 2, 1, 1), lambda x: F.max_pool2d(x, 3, 2, 1)),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling(name: str) -> None:
    layer, f = POOLINGS[name]
    _check(layer, _input(2, 3, 5, 7), f)


def test_pooling_moments() -> None:
    x = _input(2, 3, 6, 6)
    average = nn.AvgPool2d(2).forward(x)
    windows = F.unfold(x.variance(), 2, stride=2).unflatten(1, (3, 4))  # (batch, channel, window, place)
    torch.testing.assert_close(average.variance().flatten(2), windows.sum(2) / 16)
    largest = nn.MaxPool2d(2, 2).forward(x)
    means = F.unfold(x.mu, 2, stride=2).unflatten(1, (3, 4))
    picked = windows.gather(2, means.argmax(2, keepdim=True)).squeeze(2)
    torch.testing.assert_close(largest.variance().flatten(2), picked)


def _standardised(x: nn.Gaussian, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    n = x.mu[0].numel() if 0 not in dims else x.mu.numel() // x.mu.shape[1 if x.mu.ndim == 4 else -1]
    mean = x.mu.mean(dims, keepdim=True)
    var = (((x.mu - mean) ** 2).sum(dims, keepdim=True) + x.variance().sum(dims, keepdim=True)) / (n - 1)
    return mean, (var + eps).sqrt()


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2, 5)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    x = _input(*shape)
    dims = (0,) if len(shape) == 2 else (0, 2, 3)
    mean, scale = _standardised(x, dims, 1e-5)
    view = (1, 4) if len(shape) == 2 else (1, 4, 1, 1)
    _check(nn.BatchNorm2d(4), x, lambda m, w, b: (m - mean) / scale * w.view(view) + b.view(view))


@pytest.mark.parametrize("shape", [(3, 6), (2, 6, 2, 3)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    x = _input(*shape)
    mean, scale = _standardised(x, tuple(range(1, len(shape))), 1e-4)
    view = (-1,) if len(shape) == 2 else (-1, 1, 1)
    _check(nn.LayerNorm(list(shape[1:])), x, lambda m, w, b: (m - mean) / scale * w.view(view) + b.view(view))


def test_rms_norm() -> None:
    x = _input(3, 6)
    scale = ((x.mu**2 + x.variance()).mean(1, keepdim=True) + 1e-6).sqrt()
    layer = nn.RMSNorm([6])
    _check(layer, x, lambda m, w: m / scale * w)
    layer.eval()
    out = layer.forward(x)
    w, s = layer.mu_w, layer.var_w
    torch.testing.assert_close(out.variance(), (x.variance() * (w**2 + s) + x.mu**2 * s) / scale**2)


def test_embedding_sums_rows_and_forgets_them() -> None:
    layer = nn.Embedding(5, 3, padding_idx=4).double()
    index = torch.tensor([[0, 2, 4], [2, 2, 1]], dtype=D)
    out = layer.forward(nn.Gaussian(index))
    torch.testing.assert_close(out.mu[1, 0], layer.mu_w[2])
    assert not out.mu[0, 2].any()
    d = _innovation(out.mu)
    layer.backward(d)
    for got, given in zip(layer.sums["w"], d, strict=True):
        want = torch.zeros(5, 3, dtype=D)
        for place in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
            want[int(index[place])] += given[place]
        torch.testing.assert_close(got, want)
    layer.step()
    still = layer.mu_w.clone()
    layer.forward(nn.Gaussian(torch.tensor([[3.0]], dtype=D)))
    layer.backward(_innovation(torch.zeros(1, 1, 3, dtype=D)))
    layer.step()
    torch.testing.assert_close(layer.mu_w[:3], still[:3])
    assert (layer.mu_w[3] != still[3]).all()


# ---- recurrence ------------------------------------------------------------------------------------------------------
def _run_lstm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = c = x.new_zeros(x.shape[0], w.shape[1])
    rows = []
    for t in range(x.shape[1]):
        f, i, g, o = torch.einsum("bj,qkj->qbk", torch.cat((x[:, t], h), -1), w) + b[:, None]
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        rows.append(h)
    return torch.stack(rows, 1)


def _certain_lstm(steps: int) -> nn.LSTM:
    """Without variances the means are those of an ordinary LSTM, and so are their derivatives."""
    layer = nn.LSTM(2, 3, steps).double()
    layer.var_w.zero_()
    layer.var_b.zero_()
    return layer


def test_lstm_of_one_step() -> None:
    layer = nn.LSTM(2, 3, 1).double()
    x = nn.Gaussian(torch.randn(4, 1, 2, dtype=D), None, torch.rand(4, 1, 2, dtype=D))
    _check(layer, x, _run_lstm)


@pytest.mark.parametrize("steps", [2, 5])
def test_lstm_means_go_back_through_time_like_gradients(steps: int) -> None:
    layer = _certain_lstm(steps)
    x = nn.Gaussian(torch.randn(3, steps, 2, dtype=D))
    out = layer.forward(x)
    torch.testing.assert_close(out.mu, _run_lstm(x.mu, layer.mu_w, layer.mu_b))
    d = _innovation(out.mu)
    back = layer.backward(d)
    (at_input, _), (s1, _), (s1_b, _) = _dense(_run_lstm, d, x.mu, layer.mu_w.detach(), layer.mu_b.detach())
    torch.testing.assert_close(back.mu, at_input)
    torch.testing.assert_close(layer.sums["w"][0].reshape(s1.shape), s1)
    torch.testing.assert_close(layer.sums["b"][0].reshape(s1_b.shape), s1_b)


def test_lstm_variances_go_back_through_time() -> None:
    """The recursion of lstm.py's header, with dense matrices for each sample instead of the ten products."""
    steps, batch = 4, 2
    layer = _certain_lstm(steps)
    x = torch.randn(batch, steps, 2, dtype=D)
    out = layer.forward(nn.Gaussian(x))
    d = _innovation(out.mu)
    back = layer.backward(d)
    w, s2 = layer.mu_w.detach(), torch.zeros(4, 3, 5, dtype=D)
    for n in range(batch):
        h, c, tape = torch.zeros(3, dtype=D), torch.zeros(3, dtype=D), []
        for t in range(steps):
            joined = torch.cat((x[n, t], h))
            f, i, g, o = torch.einsum("j,qkj->qk", joined, w) + layer.mu_b
            f, i, g, o = torch.sigmoid(f), torch.sigmoid(i), torch.tanh(g), torch.sigmoid(o)
            slopes = [f * (1 - f) * c, i * (1 - i) * g, (1 - g * g) * i]
            c = f * c + i * g
            a = torch.tanh(c)
            tape.append((joined, slopes, o * (1 - o) * a, (1 - a * a) * o, f))
            h = o * a
        later_h, later_c = torch.zeros(3, dtype=D), torch.zeros(3, dtype=D)
        for t in reversed(range(steps)):
            joined, slopes, slope_o, r, f = tape[t]
            at_h = d.var[n, t] + later_h
            of_cell = sum(s[:, None] * w[q] for q, s in enumerate(slopes))  # (unit, input)
            of_output = r[:, None] * of_cell + slope_o[:, None] * w[3]
            at_joined = at_h @ of_output**2 + later_c @ of_cell**2
            at_cell = r**2 * at_h + later_c
            for q, s in enumerate((*slopes, slope_o)):
                s2[q] += (s**2 * (at_h if q == 3 else at_cell))[:, None] * joined**2
            torch.testing.assert_close(back.var[n, t], at_joined[:2])
            later_h, later_c = at_joined[2:], f**2 * at_cell
    torch.testing.assert_close(layer.sums["w"][1].reshape(4, 3, 5), s2)


# ---- composition -----------------------------------------------------------------------------------------------------
def test_residual_block_adds_its_branches_through_their_own_jacobians() -> None:
    main = nn.LayerBlock(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.Tanh())
    block = nn.ResNetBlock(main, nn.Linear(4, 4)).double()
    x = _input(3, 4)
    out = block.forward(x)
    d = _innovation(out.mu)
    back = block.backward(d)

    first, _, second, _ = main.layers
    z1 = F.linear(x.mu, first.mu_w, first.mu_b)
    z2 = F.linear(torch.sigmoid(z1), second.mu_w, second.mu_b)
    side = block.shortcut
    torch.testing.assert_close(out.mu, torch.tanh(z2) + F.linear(x.mu, side.mu_w, side.mu_b))
    for power, given, got in ((1, d.mu, back.mu), (2, d.var, back.var)):
        at_z2 = given * (1 - torch.tanh(z2) ** 2) ** power
        slope = torch.sigmoid(z1) * (1 - torch.sigmoid(z1))
        at_z1 = (at_z2 @ second.mu_w**power) * slope**power
        want = (at_z1 @ first.mu_w**power + given @ side.mu_w**power) * x.jacobian() ** power
        torch.testing.assert_close(got, want)


def test_a_block_of_one_layer_is_trained() -> None:
    net = nn.Sequential(nn.LayerBlock(nn.Linear(3, 2)))
    before = net.layers[0].layers[0].mu_w.clone()
    nn.TrainStep(net)(torch.randn(4, 3), torch.randn(4, 2), 0.1)
    assert (net.layers[0].layers[0].mu_w != before).all()


@pytest.mark.parametrize("kv", [1, 2])
def test_attention(kv: int) -> None:
    layer = nn.MultiheadAttention(4, 2, kv, use_rope=False).double()
    x = _input(1, 3, 4)
    out = layer.forward(x)
    d = _innovation(out.mu)
    *_, a, jcb = layer._saved
    z = F.linear(x.mu[0], layer.qkv.mu_w, layer.qkv.mu_b)
    q, k, v = z[:, :4], z[:, 4 : 4 + 2 * kv], z[:, 4 + 2 * kv :]
    want = []
    for power, given in ((1, d.mu[0]), (2, d.var[0])):
        at = torch.zeros_like(z)
        for head in range(2):
            own, shared = slice(2 * head, 2 * head + 2), slice(2 * (head * kv // 2), 2 * (head * kv // 2) + 2)
            weights, slope = a[0].flatten(0, 1)[head], jcb[0].flatten(0, 1)[head]
            for t in range(3):
                for s in range(t + 1):  # token t sees token s
                    at_score = (given[t, own] @ v[s, shared] ** power) * (slope[t, s] / 2**0.5) ** power
                    at[t, own] += at_score * k[s, shared] ** power
                    at[s, 4 : 4 + 2 * kv][shared] += at_score * q[t, own] ** power
                    at[s, 4 + 2 * kv :][shared] += weights[t, s] ** power * given[t, own]
        want.append((at @ layer.qkv.mu_w**power) * x.jacobian()[0] ** power)
    back = layer.backward(d)
    torch.testing.assert_close(back.mu[0], want[0])
    torch.testing.assert_close(back.var[0], want[1])


def test_rotary_embedding_goes_back_by_its_transpose() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 1).double()
    cos, sin = layer._angles(torch.zeros(1, 5, dtype=D))
    from gridwise.tagi.nn.attention import _rotate, _rotate_var

    x, y = torch.randn(5, 4, dtype=D), torch.randn(5, 4, dtype=D)
    for turn in (_rotate, _rotate_var):
        torch.testing.assert_close((turn(x, cos, sin) * y).sum(), (x * turn(y, cos, -sin)).sum())


def test_activations_in_a_row_multiply_their_jacobians() -> None:
    x = nn.Gaussian(torch.randn(3, 2, dtype=D), torch.rand(3, 2, dtype=D))
    first = nn.Sigmoid().forward(x)
    both = nn.Tanh().forward(first)
    alone = nn.Tanh().forward(nn.Gaussian(first.mu, first.var))
    torch.testing.assert_close(both.jcb, alone.jcb * first.jcb)


def test_backward_without_forward_says_so() -> None:
    with pytest.raises(GridwiseError, match="no forward pass"):
        nn.Linear(2, 2).backward(nn.Innovation(torch.zeros(1, 2), torch.zeros(1, 2)))
