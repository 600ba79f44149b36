"""Estimators for scikit-learn: its own checks, its tools, and that noise, epochs and intervals come out right."""

from __future__ import annotations

import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_iris
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError, GridwiseError
from gridwise.tagi import metric
from gridwise.tagi.estimators.sklearn import base, search
from gridwise.tagi.estimators.sklearn.noise import ends_of, factor_of_noise, likeliest
from gridwise.tagi.estimators.sklearn.stacked import StackedLinear
from gridwise.tagi.sklearn import TAGIClassifier, TAGIRegressor

WEIGHTS = (
    "a row of weight 2 counts as two, but two rows fall into other batches and folds than one: the same information in "
    "another order, as in MLPRegressor"
)
pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)  # few epochs are enough for most tests
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": WEIGHTS}


@parametrize_with_checks(
    [TAGIRegressor((20,), random_state=0, max_epochs=15), TAGIClassifier((20,), random_state=0, max_epochs=15)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_what_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def waves(n: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (n, 2))
    return x, 1e3 + 50 * (np.sin(x[:, 0]) + 0.5 * x[:, 1]) + noise * rng.standard_normal(n)


# ---- noise and epochs -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("noise", [5.0, pytest.param(20.0, marks=pytest.mark.soak)])
def test_noise_is_found_and_intervals_hold(noise: float, capsys: pytest.CaptureFixture) -> None:
    x, y = waves(300, noise)
    model = TAGIRegressor(random_state=0, max_epochs=60, verbose=1).fit(x, y)
    assert 0.8 * noise < model.noise_ < 1.35 * noise
    assert 1 <= model.n_epochs_ <= 60
    assert f"{model.n_epochs_} epochs" in capsys.readouterr().out
    x, y = waves(1000, noise, seed=1)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (1000,)
    assert 0.9 < metric.coverage(mean, y, std) < 0.985
    low, high = model.predict_interval(x, 0.5)
    assert 0.4 < ((low < y) & (y < high)).mean() < 0.65
    assert model.score(x, y) > 0.6


@pytest.mark.soak
def test_noise_that_varies() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (600, 1))
    y = np.sin(3 * x[:, 0]) + (0.05 + 0.4 * (x[:, 0] > 0)) * rng.standard_normal(600)
    model = TAGIRegressor(noise="heteroscedastic", random_state=0, max_epochs=40).fit(x, y)
    _, quiet = model.predict([[-0.6]], return_std=True)
    _, loud = model.predict([[0.6]], return_std=True)
    assert loud[0] > 2 * quiet[0]
    assert 0.2 < model.noise_ < 0.5


def test_a_given_noise_stays() -> None:
    x, y = waves(100, 5.0)
    model = TAGIRegressor(noise=7.0, random_state=0, max_epochs=4, early_stopping=False).fit(x, y)
    assert model.noise_ == pytest.approx(7.0)
    assert model.n_epochs_ == 4
    assert (model.predict(x, return_std=True)[1] > 7.0).all()


def test_too_few_epochs_are_told() -> None:
    x, y = waves(60, 5.0)
    with pytest.warns(ConvergenceWarning, match=r"`max_epochs` \(=3\)"):
        TAGIRegressor((8,), random_state=0, max_epochs=3).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TAGIRegressor((8,), random_state=0, max_epochs=3, early_stopping=False).fit(x, y)
        TAGIRegressor((8,), random_state=0, max_epochs=300, patience=1).fit(*waves(60, 500.0))  # nothing to learn


def test_hidden_layers_are_those_that_held_out_rows_prefer() -> None:
    x, y = waves(80, 5.0)
    scores = {
        widths: TAGIRegressor(widths, random_state=0, max_epochs=20).fit(x, y).validation_score_
        for widths in base.TRIED
    }
    model = TAGIRegressor(random_state=0, max_epochs=20).fit(x, y)
    assert model.hidden_layers_ == max(scores, key=lambda widths: scores[widths])
    assert model.validation_score_ == max(scores.values())
    assert len([layer for layer in model.net_.layers if isinstance(layer, nn.Linear)]) == len(model.hidden_layers_) + 1


def test_intervals_follow_errors_that_are_not_gaussian() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 1))
    y = x[:, 0] + rng.exponential(1.0, 400)
    model = TAGIRegressor((10,), random_state=0, max_epochs=40).fit(x[:300], y[:300])
    low, high = model.predict_interval(x[300:], 0.8)
    mean = model.predict(x[300:])
    assert (high - mean > 1.3 * (mean - low)).all()  # a Gaussian has its mean in the middle
    assert 0.7 < ((low <= y[300:]) & (y[300:] <= high)).mean() < 0.9
    wider = model.predict_interval(x[300:], 0.9999)  # too few rows to tell: at least a Gaussian's
    std = model.predict(x[300:], return_std=True)[1]
    assert (wider[0] <= mean - 3.8 * std).all()
    assert (wider[1] >= high).all()


def test_ends_of_few_residuals_are_those_of_a_gaussian() -> None:
    low, high = ends_of(np.array([[0.5, np.nan], [-3.0, np.nan]]), 0.9)
    np.testing.assert_allclose((low, high), [[-1.6449] * 2, [1.6449] * 2], atol=1e-4)


def test_noise_that_varies_is_scaled_by_held_out_rows() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.randn(500, 2, generator=rng).double() * torch.tensor([1.0, 3.0])
    zeros, weight = torch.zeros_like(y), torch.ones(500).double()
    y[:10, 1] = torch.nan
    factor = factor_of_noise(zeros, zeros + 1e-9, y, torch.ones_like(y), weight)
    assert factor.tolist() == pytest.approx([1.0, 9.0], rel=0.2)


def test_it_does_not_know_where_it_has_seen_nothing() -> None:
    x, y = waves(200, 5.0)
    model = TAGIRegressor(random_state=0, max_epochs=30).fit(x, y)
    near, far = model.predictive([[0.0, 0.0]]), model.predictive([[30.0, 30.0]])
    assert far.model_std[0] > 3 * near.model_std[0]


def test_likeliest_finds_the_maximum() -> None:
    for place in (0.002, 0.3, 2.9):
        assert likeliest(lambda s, p=place: -((np.log(s) - np.log(p)) ** 2)) == pytest.approx(place, rel=0.01)


# ---- data of many kinds ---------------------------------------------------------------------------------------------
def test_several_outputs_with_missing_targets() -> None:
    x, y = waves(200, 5.0)
    both = np.stack((y, -y / 100), 1)
    both[::3, 1] = np.nan
    both[5] = np.nan
    model = TAGIRegressor(random_state=0, max_epochs=30).fit(x, both)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (200, 2)
    assert model.noise_.shape == (2,)
    known = ~np.isnan(both[:, 1])
    assert np.corrcoef(mean[known, 1], both[known, 1])[0, 1] > 0.9
    with pytest.raises(ValueError, match="NaN in all rows"):
        model.fit(x, np.full(200, np.nan))


def test_rows_of_no_weight_do_not_count() -> None:
    x, y = waves(120, 5.0)
    spoilt, weight = y.copy(), np.ones(120)
    spoilt[::4], weight[::4] = 1e6, 0.0
    kept = weight > 0
    options: dict[str, Any] = {"random_state": 0, "max_epochs": 5}
    with_weights = TAGIRegressor(**options).fit(x, spoilt, weight).predict(x)
    np.testing.assert_array_equal(with_weights, TAGIRegressor(**options).fit(x[kept], y[kept]).predict(x))
    heavy = TAGIRegressor(noise=20.0, **options).fit(x, y, np.full(120, 50.0))
    light = TAGIRegressor(noise=20.0, **options).fit(x, y, np.full(120, 0.1))
    assert heavy.predictive(x).model_std.mean() < light.predictive(x).model_std.mean()


def test_labels_of_any_type_and_probabilities() -> None:
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = TAGIClassifier(random_state=0, max_epochs=40).fit(x[::2], names[::2])
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    p = model.predict_proba(x[1::2])
    np.testing.assert_allclose(p.sum(1), 1.0)
    assert model.score(x[1::2], names[1::2]) > 0.88
    assert np.log(p[np.arange(75), y[1::2]]).mean() > -0.35
    with pytest.raises(ValueError, match="one class"):
        model.fit(x[:10], names[:10])


def test_learning_on() -> None:
    x, y = waves(600, 10.0)
    model = TAGIRegressor(random_state=0)
    for start in range(0, 600, 100):
        model.partial_fit(x[start : start + 100], y[start : start + 100])
    assert model.score(*waves(300, 10.0, seed=1)) > 0.5
    assert 5.0 < model.noise_ < 40.0
    labels = np.where(y > 1e3, "high", "low")
    tree = TAGIClassifier(random_state=0).partial_fit(x[:50], labels[:50], classes=["high", "low", "other"])
    tree.partial_fit(x[50:], labels[50:])
    assert tree.score(x, labels) > 0.85
    assert tree.predict_proba(x).shape == (600, 3)
    with pytest.raises(ValueError, match="not among `classes_`"):
        tree.partial_fit(x[:5], ["none"] * 5)


# ---- scikit-learn's tools -------------------------------------------------------------------------------------------
def test_tools_of_scikit_learn() -> None:
    x, y = waves(90, 5.0)
    small = TAGIRegressor((10,), random_state=0, max_epochs=10)
    assert clone(small).get_params() == small.get_params()
    pipe = make_pipeline(StandardScaler(), small).fit(x, y)
    assert pipe.predict(x).shape == (90,)
    assert pipe.predict(x, return_std=True)[1].shape == (90,)
    assert cross_val_score(small, x, y, cv=2).shape == (2,)
    logs = TransformedTargetRegressor(small, func=np.log, inverse_func=np.exp).fit(x, y)
    assert logs.score(x, y) > 0.3
    bag = BaggingRegressor(small, n_estimators=2, random_state=0).fit(x, y)
    assert bag.predict(x).shape == (90,)
    again = pickle.loads(pickle.dumps(pipe))
    np.testing.assert_array_equal(again.predict(x), pipe.predict(x))


@pytest.mark.soak
def test_grid_search_with_two_processes() -> None:
    x, y = waves(60, 5.0)
    found = GridSearchCV(TAGIRegressor(random_state=0, max_epochs=3), {"hidden_layers": [(5,), (10,)]}, cv=2, n_jobs=2)
    assert found.fit(x, y).best_params_["hidden_layers"] in [(5,), (10,)]


def test_fits_are_the_same_for_the_same_seed_and_leave_torch_alone() -> None:
    x, y = waves(60, 5.0)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = (TAGIRegressor(random_state=1, max_epochs=5).fit(x, y).predict(x) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


# ---- errors ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"noise": -1.0}, r"`noise` \(=-1.0\)"),
        ({"noise": "often"}, "'learnt'"),
        ({"hidden_layers": (0,)}, "hidden_layers"),
        ({"activation": "step"}, "'mixture_relu'"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_epochs": 1.5}, "max_epochs"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
    ],
)
def test_settings_that_mean_nothing(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        TAGIRegressor(**options).fit(*waves(20, 1.0))


def test_a_network_that_diverges_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = waves(40, 1.0)
    learn = search.learn_epoch

    def ruin(task: Any, step: nn.TrainStep, *rest: Any) -> None:
        learn(task, step, *rest)
        next(iter(step.net.parameters())).fill_(float("nan"))

    model = TAGIRegressor(random_state=0, max_epochs=3).fit(x, y)
    before = model.predict(x)
    for module in (search, base):
        monkeypatch.setattr(module, "learn_epoch", ruin)
    for learn_again in (model.fit, model.partial_fit):
        with pytest.raises(GridwiseError, match=r"NaN or infinite after epoch 1(?s:.*)fix"):
            learn_again(2 * x, 3 * y)
    np.testing.assert_array_equal(model.predict(x), before)  # what is refused changes nothing


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "gridwise.tagi.sklearn")
    with pytest.raises(GridwiseError, match=r"pip install 'gridwise\[sklearn\]'"):
        __import__("gridwise.tagi.sklearn")


# ---- networks side by side ------------------------------------------------------------------------------------------
def test_members_are_networks_of_their_own() -> None:
    torch.manual_seed(0)
    stacked = nn.Sequential(StackedLinear(3, 2, 4), nn.ReLU(), StackedLinear(3, 4, 1)).double()
    alone = [nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double() for _ in range(3)]
    for member, net in enumerate(alone):
        for mine, theirs in zip(net.parameters(), stacked.parameters(), strict=True):
            mine.copy_(theirs[member])
    x, y, noise = (
        torch.randn(6, 2).double(),
        torch.randn(6, 3, 1).double(),
        torch.tensor([[0.1], [0.5], [2.0]]).double(),
    )
    y[2, 0] = torch.nan
    step, steps = nn.TrainStep(stacked), [nn.TrainStep(net) for net in alone]
    for _ in range(3):
        mu, var = step(x, y, noise.expand(6, 3, 1))
        for member, single in enumerate(steps):
            m, v = single(x, y[:, member], noise[member].expand(6, 1))
            torch.testing.assert_close((mu[:, member], var[:, member]), (m, v))
    for member, net in enumerate(alone):
        for mine, theirs in zip(net.parameters(), stacked.parameters(), strict=True):
            torch.testing.assert_close(mine.data, theirs[member].data)


def test_a_column_without_targets_keeps_its_noise() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 2))
    y = x + random.normal(scale=0.1, size=x.shape)
    model = TAGIRegressor((8,), max_epochs=3, random_state=0).fit(x, y)
    noise = model.noise_.copy()
    model.partial_fit(x, np.column_stack((y[:, 0], np.full(60, np.nan))))
    assert model.noise_[1] == pytest.approx(noise[1])
    assert model.noise_[0] != noise[0]
    fresh = TAGIRegressor((8,), random_state=0)
    for _ in range(2):
        fresh.partial_fit(x, np.column_stack((y[:, 0], np.full(60, np.nan))))
    assert np.isfinite(fresh.noise_).all()


def test_one_number_is_one_hidden_layer() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    model = TAGIRegressor(5, max_epochs=2, random_state=0).fit(x, x[:, 0])
    assert model.net_.layers[0].output_size == 5
    assert model.hidden_layers == 5
    for wrong in (0, 2.5, None, "many"):
        with pytest.raises(ArgumentError, match="`hidden_layers`"):
            TAGIRegressor(wrong).fit(x, x[:, 0])


def test_pickles_from_before_the_modules_moved_can_be_read() -> None:
    model = TAGIRegressor(3, random_state=0)
    old = pickle.dumps(model, protocol=0).replace(b"estimators.sklearn.regressor", b"estimators.regressor")
    assert type(pickle.loads(old)) is TAGIRegressor
