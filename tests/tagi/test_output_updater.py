"""Observations of the output: against Gaussian conditioning by hand, and against samples for learnt noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError


def _states(mu: torch.Tensor, var: torch.Tensor, jcb: torch.Tensor | None = None) -> nn.BaseHiddenStates:
    out = nn.BaseHiddenStates()
    out.gaussian = nn.Gaussian(mu, var, jcb)
    return out


def test_update_is_gaussian_conditioning() -> None:
    mu, var = torch.randn(3, 2), torch.rand(3, 2) + 0.1
    y, noise = torch.randn(3, 2), torch.rand(3, 2) + 0.1
    delta = nn.BaseDeltaStates()
    nn.OutputUpdater("cpu").update(_states(mu, var), y.numpy().reshape(-1), noise.numpy().reshape(-1), delta)
    posterior_var = 1 / (1 / var + 1 / noise)
    posterior = posterior_var * (mu / var + y / noise)
    torch.testing.assert_close(mu + delta.delta_mu * var, posterior)
    torch.testing.assert_close(var + delta.delta_var * var**2, posterior_var)


def test_missing_observations_say_nothing() -> None:
    mu, var = torch.zeros(1, 3), torch.tensor([[1.0, 1.0, 0.0]])
    delta = nn.BaseDeltaStates()
    nn.OutputUpdater().update(_states(mu, var), np.array([np.nan, 1.0, 1.0]), np.array([0.1, 0.1, 0.0]), delta)
    assert delta.delta_mu.tolist()[0] == pytest.approx([0.0, 1 / 1.1, 0.0])
    assert delta.delta_var.tolist()[0] == pytest.approx([0.0, -1 / 1.1, 0.0])


def test_indices_observe_some_units_only() -> None:
    mu, var, jcb = torch.randn(2, 4), torch.rand(2, 4), torch.rand(2, 4)
    delta, whole = nn.BaseDeltaStates(), nn.BaseDeltaStates()
    updater = nn.OutputUpdater()
    y = np.array([1.0, -1.0, 0.5, 2.0])
    updater.update_using_indices(_states(mu, var, jcb), y, np.full(4, 0.2), np.array([1, 4, 2, 3]), delta)
    full = np.full((2, 4), np.nan)
    full[0, [0, 3]], full[1, [1, 2]] = y[:2], y[2:]
    updater.update(_states(mu, var, jcb), full, np.full((2, 4), 0.2), whole)
    torch.testing.assert_close(delta.delta_mu, whole.delta_mu)
    torch.testing.assert_close(delta.delta_var, whole.delta_var)


def test_learnt_noise_against_samples() -> None:
    """Y = Z + V with V ~ N(0, W), W ~ N(a, q): the posterior of V**2 given y, in the limit where W is known well."""
    torch.manual_seed(0)
    m0, v0, a, q, y = 0.3, 0.5, 0.8, 1e-3, 1.9
    z = m0 + v0**0.5 * torch.randn(4_000_000, dtype=torch.float64)
    v = a**0.5 * torch.randn(4_000_000, dtype=torch.float64)
    near = (z + v - y).abs() < 0.02
    states = _states(torch.tensor([[m0, a]]), torch.tensor([[v0, q]]))
    delta = nn.BaseDeltaStates()
    nn.OutputUpdater().update_heteros(states, np.array([y]), delta)
    assert float(m0 + delta.delta_mu[0, 0] * v0) == pytest.approx(float(z[near].mean()), abs=0.02)
    k = q / (3 * q + 2 * a * a)
    shift = k * (float((v[near] ** 2).mean()) - a)  # what the samples say about W, through Cov(W, V**2) / Var(V**2)
    assert float(delta.delta_mu[0, 1] * q) == pytest.approx(shift, rel=0.05)
    after = float(delta.delta_var[0, 1] * q**2) / k**2 + 3 * q + 2 * a * a  # Var(V**2 | y)
    assert after == pytest.approx(float((v[near] ** 2).var()), rel=0.05)


def test_learnt_noise_with_a_missing_observation() -> None:
    delta = nn.BaseDeltaStates()
    states = _states(torch.ones(2, 2), torch.ones(2, 2))
    nn.OutputUpdater().update_heteros(states, np.array([np.nan, 3.0]), delta)
    assert not delta.delta_mu[0].any()
    assert delta.delta_mu[1].all()


def test_wrong_sizes_are_told() -> None:
    states, delta = _states(torch.zeros(2, 3), torch.ones(2, 3)), nn.BaseDeltaStates()
    updater = nn.OutputUpdater()
    with pytest.raises(ArgumentError, match="5 observations with 6 variances"):
        updater.update(states, np.zeros(5), np.zeros(6), delta)
    with pytest.raises(ArgumentError, match="each from 1 to 3"):
        updater.update_using_indices(states, np.zeros(2), np.zeros(2), np.array([0, 3]), delta)


def test_what_is_set_later_replaces_a_problem() -> None:
    out, y = nn.BaseHiddenStates(4, 2), torch.zeros(2, 2)
    changes = {
        "reset": lambda states: states.reset_zeros(),
        "copied": lambda states: states.copy_from(nn.BaseDeltaStates(4, 2)),
        "sized": lambda states: states.set_size(4, 2),
        "by hand": lambda states: setattr(states, "delta_mu", y),
    }
    for name, change in changes.items():
        states = nn.BaseDeltaStates(4, 2)
        states.shared = True
        nn.OutputUpdater().update(out, torch.zeros(3), 0.1, states)
        assert states.problem is not None
        copy = nn.BaseDeltaStates(4, 2)
        copy.copy_from(states)
        assert copy.problem == states.problem
        change(states)
        assert states.problem is None, name
