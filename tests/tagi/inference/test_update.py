"""The capped update against the formula written out number by number, in blocks and without."""

from __future__ import annotations

import math

import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.tagi.inference import update


def _by_hand(mu: float, var: float, s1: float, s2: float, cap: float | None) -> tuple[float, float]:
    bar = math.inf if cap is None else math.sqrt(var) / cap
    delta_mu, delta_var = var * s1, var * var * s2
    mu += math.copysign(min(abs(delta_mu), bar), delta_mu)
    var += math.copysign(min(abs(delta_var), bar), delta_var)
    return mu, var if var > 0 else update.FLOOR


@pytest.mark.parametrize("cap", [None, 0.1, 2.0, 3.0])
def test_capped_update(cap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    mu, var = torch.randn(7, 9, dtype=torch.float64), torch.rand(7, 9, dtype=torch.float64)
    s1, s2 = 5 * torch.randn_like(mu), -3 * torch.rand_like(mu)
    rows = zip(*(t.reshape(-1).tolist() for t in (mu, var, s1, s2)), strict=True)
    want = torch.tensor([_by_hand(*row, cap) for row in rows], dtype=torch.float64)
    negative = int((want[:, 1] == update.FLOOR).sum())

    def check(m: torch.Tensor, v: torch.Tensor) -> None:
        count = torch.zeros((), dtype=torch.long)
        update.capped_update([update.ParameterChange(m, v, s1, s2, cap, count)])
        assert int(count) == negative
        torch.testing.assert_close(torch.stack((m.reshape(-1), v.reshape(-1)), 1), want)

    for block in (1 << 17, 16):  # one block, and blocks with a rest
        monkeypatch.setattr(update, "_BLOCK", block)
        check(mu.clone(), var.clone())
    check(mu.t().clone().t(), var.t().clone().t())  # not contiguous, all together as on a GPU


def test_tensors_updated_together_are_updated_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different shapes and caps, in groups of few numbers, one of them empty."""
    torch.manual_seed(0)
    shapes, caps = [(3, 4), (5,), (0, 2), (2, 2), (6,)], [2.0, 2.0, 2.0, None, 0.1]
    ones = [torch.rand(4, *shape) for shape in shapes]
    together = [update.ParameterChange(*t.clone(), cap) for t, cap in zip(ones, caps, strict=True)]
    alone = [update.ParameterChange(*t.clone(), cap) for t, cap in zip(ones, caps, strict=True)]
    monkeypatch.setattr(update, "_TOGETHER", 16)
    update.capped_update(together)  # the empty one keeps them off the road through the cache
    for change in alone:
        update.capped_update([change])
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close((one.mu, one.var), (other.mu, other.var))


def test_cap_depends_on_the_batch() -> None:
    assert [update.cap_factor(b) for b in (1, 2, 255, 256, 1000)] == [0.1, 2.0, 2.0, 3.0, 3.0]


def test_variances_are_never_negative_and_the_floor_is_counted() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    layer = net.layers[0]
    layer.sums = {"w": (torch.zeros(2, 3), torch.full((2, 3), -1e3)), "b": (torch.zeros(2), torch.zeros(2))}
    net.step()
    assert (layer.var_w == update.FLOOR).all()
    assert net.get_neg_var_w_counter() == {"Linear(3,2)_0": 6}


def test_sums_are_used_once() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    nn.TrainStep(net)(torch.randn(4, 3), torch.randn(4, 2), 0.1)
    after = net.layers[0].mu_w.clone()
    net.step()
    torch.testing.assert_close(net.layers[0].mu_w.data, after)


def test_two_half_batches_add_up_to_one() -> None:
    """The sums are what workers add: those of two halves are those of the whole."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 5), nn.MixtureReLU(), nn.Linear(5, 2)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)

    def sums(rows: slice) -> list[torch.Tensor]:
        net(x[rows])
        nn.OutputUpdater().update(net.output_z_buffer, y[rows], 0.1, net.input_delta_z_buffer)
        net.backward()
        return [s.clone() for layer in net.parametric_layers() for pair in layer.sums.values() for s in pair]

    for whole, one, other in zip(sums(slice(6)), sums(slice(2)), sums(slice(2, 6)), strict=True):
        torch.testing.assert_close(whole, one + other)


def test_a_hook_sees_the_sums_before_the_step() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.ResNetBlock(nn.LayerBlock(nn.Linear(4, 4))), nn.Linear(4, 1))
    seen = []
    for layer in net.parametric_layers():
        layer.on_sums = lambda layer: seen.append((layer, sorted(layer.sums)))
    nn.TrainStep(net)(torch.randn(2, 3), torch.randn(2, 1), 0.1)
    assert seen == [(layer, ["b", "w"]) for layer in reversed(net.parametric_layers())]
    assert len(seen) == 3
