"""Numbers that would ruin a network: told before anything changes, on all workers; and moments that stay finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gridwise
import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError, GridwiseError
from gridwise.tagi.inference import moments
from gridwise.testing import workers

X, Y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(4, 2)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm2d(5), nn.ReLU(), nn.Linear(5, 2))


def with_value(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x.view(-1)[-2] = value
    return x


def loop(net: Any, x: Any, y: Any, noise: Any, var_x: Any = None) -> None:
    net(x, var_x)
    nn.OutputUpdater(net.device).update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
    net.backward()
    net.step()


def one_call(net: Any, x: Any, y: Any, noise: Any, var_x: Any = None) -> None:
    nn.TrainStep(net)(x, y, noise, var_x=var_x)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"x": with_value(X, float("nan"))}, r"`mu_x` has nan in row 3, column 1"),
    "inf": ({"x": with_value(X, float("inf"))}, r"`mu_x` has inf in row 3"),
    "too large for the network": ({"x": with_value(X.double(), 1e300)}, r"`mu_x` has 1e\+300 in row 3"),
    "negative variance": ({"var_x": with_value(torch.ones(4, 3), -0.5)}, r"`var_x` has -0.5 in row 3, column 1"),
    "nan variance": ({"var_x": with_value(torch.ones(4, 3), float("nan"))}, r"`var_x` has nan"),
    "infinite observation": ({"y": with_value(Y, -float("inf"))}, r"`mu_obs` has -inf in row 3[^$]*NaN for a missing"),
    "negative noise": ({"noise": with_value(torch.ones(4, 2), -1e-3)}, r"`var_obs` has -0.001\d* in row 3"),
    "negative number": ({"noise": -0.1}, r"`var_obs` has -0.1"),
    "nan noise": ({"noise": np.full(8, np.nan)}, r"`var_obs` has nan"),
}


@pytest.mark.parametrize("learn", [loop, one_call])
@pytest.mark.parametrize("name", BAD)
def test_what_ruins_parameters_is_told_and_changes_none(name: str, learn: Callable[..., None]) -> None:
    given, match = BAD[name]
    net = network()
    arguments = {"x": X, "y": Y, "noise": 0.1} | given
    learn(net, X, Y, 0.1)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(ArgumentError, match=match):
        learn(net, **arguments)
    seen = learn is loop and not set(given) & {"x", "var_x"}  # by batch norm: forward has been called
    kept = dict(net.named_parameters()) if seen else net.state_dict()
    assert all(torch.equal(value, before[key]) for key, value in kept.items())
    learn(net, X, Y, 0.1)  # and it goes on
    assert all(torch.isfinite(value).all() for value in net.state_dict().values())


@workers(2)
@pytest.mark.parametrize("name", BAD)
def test_one_workers_bad_numbers_are_told_on_all(name: str) -> None:
    given, match = BAD[name]
    P = gridwise.world()
    mine = {"x": X, "y": Y, "noise": 0.1, "var_x": torch.ones(4, 3)} | (given if P.rank == 1 else {})
    backend = P.transport.name
    config = nn.DDPConfig([], backend=backend, rank=P.rank, world_size=P.size)
    net = nn.DDPSequential(network(), config, average=False)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(ArgumentError, match=f"(?s)worker 1: .*{match}"):
        loop(net, **mine)
    assert all(torch.equal(value, before[key]) for key, value in net.model.named_parameters())
    with pytest.raises(ArgumentError, match=f"(?s)worker 1: .*{match}"):
        one_call(net.model, **mine)
    loop(net, X, Y, 0.1)
    one_call(net.model, X, Y, 0.1)
    gridwise.nn.check_replicas(net.model)


@workers(2)
def test_wrong_sizes_of_one_workers_observations_are_told_on_all() -> None:
    P = gridwise.world()
    config = nn.DDPConfig([], backend=P.transport.name, rank=P.rank, world_size=P.size)
    net = nn.DDPSequential(network(), config, average=False)
    with pytest.raises(ArgumentError, match="worker 1: 7 observations"):
        loop(net, X, torch.zeros(7) if P.rank == 1 else Y, 0.1)
    with pytest.raises(ArgumentError, match="worker 1: 7 observations"):
        one_call(net.model, X, torch.zeros(7) if P.rank == 1 else Y, 0.1)
    loop(net, X, Y, 0.1)


@workers(2)
def test_one_blocks_bad_numbers_are_told_on_the_grid() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    net = tagi.on_grid(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Linear(32, 1)), P)
    x = torch.zeros(2, 1, 2, 4)
    with pytest.raises(ArgumentError, match=r"(?s)nan in row 1, column \(0, 1, 2\)"):
        net(with_value(x, float("nan")) if P.rank == 1 else x)
    with pytest.raises(ArgumentError, match="`var_x` has -1"):
        net(x, with_value(x, -1.0) if P.rank == 1 else x)
    net(x)
    noise = -0.1 if P.rank == 1 else 0.1
    nn.OutputUpdater().update(net.output_z_buffer, torch.zeros(1), noise, net.input_delta_z_buffer)
    with pytest.raises(ArgumentError, match=r"`var_obs` has -0\.1"):
        net.backward()


def test_a_prediction_from_nothing_is_told() -> None:
    net = network().eval()
    with pytest.raises(ArgumentError, match="`mu_x` has nan in row 3"):
        net(with_value(X, float("nan")).numpy())
    net(X)
    with pytest.raises(ArgumentError, match="`delta_mu` has nan"):
        net.set_delta_z(with_value(Y, float("nan")), torch.zeros(4, 2))


# ---- moments that leave the range of numbers -----------------------------------------------------------------------
def test_closed_form_softmax_gives_probabilities_for_any_variance() -> None:
    m = torch.tensor([[0.5, -1.0, 2.0, 0.0], [300.0, 299.0, -300.0, 0.0]])
    for v in (0.0, 1e-8, 0.3, 5.0, 45.0, 90.0, 1e3, 1e30):
        for var in (torch.full_like(m, v), torch.tensor([v, 0.1, 0.0, 3.0]).expand(2, 4)):
            mu, spread, jcb = moments.closed_form_softmax(m, var)
            assert all(torch.isfinite(t).all() for t in (mu, spread, jcb))
            assert (mu >= 0).all()
            assert (mu.sum(1) < 1.001).all()
            assert (spread <= mu * (1 - mu) + 1e-6).all()  # no quantity between 0 and 1 has a larger variance
            assert (spread >= 0).all()
            assert (jcb >= 0).all()


@pytest.mark.parametrize("v", [0.5, 5.0, 45.0, 300.0])
def test_closed_form_softmax_is_close_to_samples_for_any_variance(v: float) -> None:
    torch.manual_seed(0)
    m = torch.randn(20, 4, dtype=torch.float64)
    z = m + v**0.5 * torch.randn(20_000, 20, 4, dtype=torch.float64)
    p = torch.softmax(z, -1)
    mu, _, jcb = moments.closed_form_softmax(m, torch.full_like(m, v))
    slope = ((p - p.mean(0)) * (z - m)).mean(0) / v
    assert (mu - p.mean(0)).abs().mean() < 0.2 * p.mean()
    assert (jcb - slope).abs().mean() < 0.5 * slope.mean()


def test_a_classifier_that_knows_nothing_gives_probabilities() -> None:
    labels = np.arange(200) % 4
    x = np.random.default_rng(0).standard_normal((200, 3)) + 3 * np.eye(4)[labels][:, :3]
    tagi.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4), nn.ClosedFormSoftmax())
    net.layers[2].var_b.fill_(200.0)
    model = tagi.Classifier(net, 4, sigma_v=0.3, encoding="one-hot").fit(x, labels, epochs=0, progress=False)
    np.testing.assert_allclose(model.predict(x).probability.sum(1), 1.0, rtol=1e-5)
    model.fit(x, labels, epochs=10, batch_size=10, progress=False)
    assert model.error_rate(x, labels) < 0.15  # and can learn from there


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learnt_variance_stays_a_number(dtype: torch.dtype) -> None:
    m = torch.tensor([0.0, 1.0], dtype=dtype).repeat(9, 1)
    m[:, 1] = torch.tensor([-1e30, -200.0, -50.0, 0.0, 40.0, 50.0, 90.0, 800.0, 1e30], dtype=dtype)
    for v in (0.0, 0.5, 60.0, 1e5, 1e30):
        out = nn.EvenExp().forward(nn.Gaussian(m, torch.full_like(m, v)))
        assert all(torch.isfinite(t).all() for t in (out.mu, out.variance(), out.jacobian()))
        assert (out.mu[:, 1] > 0).all()
        states, delta = nn.BaseHiddenStates(), nn.BaseDeltaStates()
        states.gaussian = out
        for y in (0.0, 3.0, 1e6):
            nn.OutputUpdater().update_heteros(states, torch.full((9,), y, dtype=dtype), delta)
            assert torch.isfinite(delta.delta_mu).all()
            assert torch.isfinite(delta.delta_var).all()
            assert (delta.delta_mu[-3:, 1] <= 0).all()  # a variance far too large comes down


@pytest.mark.parametrize("size", [1e3, 1e5, 1e8])
@pytest.mark.parametrize("seed", range(3))
def test_varying_noise_with_large_observations(size: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (60, 2)).astype(np.float32)
    y = (size * (1 + 0.2 * x[:, :1] + 0.1 * rng.standard_normal((60, 1)))).astype(np.float32)
    tagi.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2), nn.EvenExp())
    step = nn.TrainStep(net, "heteros")
    for epoch in range(10):
        for rows in np.random.default_rng(epoch).permutation(60).reshape(-1, 10):
            mu, var = step(x[rows], y[rows])
            assert torch.isfinite(mu).all()
            assert torch.isfinite(var).all()


# ---- a second fit --------------------------------------------------------------------------------------------------
def test_a_second_fit_starts_anew() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
    far_x, far_y = 1e3 + 50 * x, -500 + 100 * y

    def build() -> tagi.Regressor:
        tagi.manual_seed(0)
        return tagi.Regressor(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm2d(8), nn.ReLU(), nn.Linear(8, 1)), 0.3)

    once = build().fit(far_x, far_y, epochs=3, progress=False)
    again = build().fit(x, y, epochs=2, progress=False).fit(far_x, far_y, epochs=3, progress=False)
    np.testing.assert_allclose(again.predict(far_x).mean, once.predict(far_x).mean, rtol=1e-6)
    assert again.history == once.history
    before = again.predict(far_x).mean
    with pytest.raises(GridwiseError, match="nan"):
        again.fit(np.where(x > 1, np.nan, x), y, progress=False)
    np.testing.assert_array_equal(again.predict(far_x).mean, before)  # a fit that is refused changes nothing
    more = build().fit(far_x, far_y, epochs=2, progress=False).partial_fit(far_x, far_y, epochs=1, progress=False)
    assert len(more.history) == 3
    loaded = build()
    loaded.load_state_dict(more.state_dict())
    np.testing.assert_allclose(
        loaded.fit(far_x, far_y, epochs=3, progress=False).predict(far_x).mean, once.predict(far_x).mean, rtol=1e-6
    )
