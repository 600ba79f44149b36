"""What comes into an estimator: wrong sizes, missing inputs and impossible targets are told before anything is learnt."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError

X, Y = np.random.default_rng(0).standard_normal((12, 3)), np.arange(12.0)
LABELS = np.arange(12) % 10


def net(outputs: int = 1, inputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))


def regressor(**options: Any) -> tagi.Regressor:
    return tagi.Regressor(net(), **options)


def classifier() -> tagi.Classifier:
    return tagi.Classifier(net(11), 10)


def fit(model: Any, *data: Any, **options: Any) -> Any:
    return model.fit(*data, progress=False, **options)


def refused(model: Any, match: str, *data: Any, **options: Any) -> None:
    """`fit` raises one clear error, and neither the network nor the estimator has changed."""
    before = {name: value.clone() for name, value in model.net.state_dict().items()}
    with pytest.raises(ArgumentError, match=match):
        fit(model, *data, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.net.state_dict().items())
    assert model.history == []
    with pytest.raises(ArgumentError, match="nothing has been fitted"):
        model.predict(X)


# ---- features -------------------------------------------------------------------------------------------------------
MODELS: list[Callable[[], Any]] = [regressor, lambda: regressor(standardize=False), classifier]


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("features", [1, 4, 6])
def test_another_number_of_features_is_told(build: Callable[[], Any], features: int) -> None:
    told = f"`x` has {features} features in a row, the network needs 3"
    refused(build(), told, np.zeros((12, features)), LABELS)
    model = fit(build(), X, LABELS)
    with pytest.raises(ArgumentError, match=told):
        model.predict(np.zeros((10, features)))
    with pytest.raises(ArgumentError, match="has 1 features"):
        model.predict(np.zeros(30))


def test_images_and_sequences_may_be_flat_or_not() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 2, 2, in_width=3, in_height=2), nn.ReLU(), nn.Linear(4, 1))
    images = np.random.default_rng(0).standard_normal((5, 1, 2, 3))
    model = fit(tagi.Regressor(conv), images, np.arange(5.0))
    np.testing.assert_array_equal(model.predict(images).mean, model.predict(images.reshape(5, 6)).mean)
    with pytest.raises(ArgumentError, match="has 12 features"):
        model.predict(np.zeros((5, 1, 4, 3)))
    lstm = tagi.Regressor(nn.Sequential(nn.LSTM(1, 2, 3), nn.Linear(6, 1)))
    refused(lstm, "needs 3", np.zeros((4, 6)), np.zeros(4))
    assert fit(lstm, X, Y).predict(X[:, :, None]).mean.shape == (12, 1)


def test_no_rows_give_no_rows() -> None:
    assert fit(regressor(), X, Y).predict(X[:0]).mean.shape == (0, 1)
    p = fit(classifier(), X, LABELS).predict(X[:0])
    assert p.label.shape == (0,)
    assert p.probability.shape == (0, 10)


def test_a_trained_network_may_come_without_epochs() -> None:
    model = fit(regressor(sigma_v=0.5), X, Y, epochs=0)
    assert (model.predict(X).std > 0).all()


# ---- values ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_missing_input_is_told_with_its_place(build: Callable[[], Any], value: float) -> None:
    x = X.copy()
    x[7, 2] = value
    refused(build(), f"{value} in row 7, column 2", x, LABELS)
    pairs = [(X[:4], LABELS[:4]), (x[4:], LABELS[4:])]
    refused(build(), f"batch 1: `x` has {value} in row 3, column 2", pairs)
    with pytest.raises(ArgumentError, match="row 7, column 2"):
        fit(build(), X, LABELS).predict(x)


def test_a_missing_observation_is_left_out() -> None:
    y = Y.copy()
    y[3] = np.nan
    assert np.isfinite(fit(regressor(), X, y).predict(X).mean).all()
    y[3] = np.inf
    refused(regressor(), "`y` has inf in row 3", X, y)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (np.where(LABELS == 3, -1, LABELS), "label -1 in row 3"),
        (np.where(LABELS == 3, 0.7, LABELS), "label 0.7 in row 3"),
        (np.where(LABELS == 3, np.nan, LABELS), "label nan in row 3"),
        (LABELS + 1, r"(?s)label 10 in row 9.*fix: y - 1"),
        (np.eye(10)[LABELS], r"(?s)10 columns.*argmax"),
    ],
)
@pytest.mark.parametrize("encoding", ["tree", "one-hot"])
def test_labels_that_are_none(labels: np.ndarray, told: str, encoding: str) -> None:
    outputs = {"tree": 11, "one-hot": 10}[encoding]
    refused(tagi.Classifier(net(outputs), 10, encoding=encoding), told, X, labels)


def test_sizes_of_the_output() -> None:
    refused(regressor(), "`y` has 2 columns, which need 2 outputs, the network has 1", X, np.zeros((12, 2)))
    refused(tagi.Classifier(net(10), 10), "need 11 outputs, the network has 10", X, LABELS)
    refused(tagi.Classifier(net(11), 10, encoding="one-hot"), "need 10 outputs, the network has 11", X, LABELS)
    with pytest.raises(ArgumentError, match=r"ends with Linear\(4,2\)"):
        tagi.Regressor(net(2), heteroscedastic=True)
    varying = nn.Sequential(nn.Linear(3, 2), nn.EvenExp())
    refused(tagi.Regressor(varying, heteroscedastic=True), "need 4 outputs", X, np.zeros((12, 2)))


def test_noise_is_not_negative() -> None:
    for sigma in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="sigma_v"):
            regressor(sigma_v=sigma)
        with pytest.raises(ArgumentError, match="sigma_v"):
            tagi.Classifier(net(11), 10, sigma)
    refused(regressor(sigma_v=lambda epoch: 0.1 - epoch), r"`sigma_v` \(=-0.9\) in epoch 1", X, Y, epochs=2)


# ---- loaders --------------------------------------------------------------------------------------------------------
def test_loaders_that_cannot_be_used() -> None:
    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield X, Y

    refused(regressor(), r"(?s)gives its batches once.*a list", pairs())
    refused(regressor(), "no rows", [])
    refused(regressor(), "no rows", X[:0], Y[:0])
    refused(regressor(), "fix: pairs", [X])
    refused(regressor(), "batch 1: rows of", [(X, Y), (X, np.zeros((12, 2)))])
    refused(regressor(), "batch_size", X, Y, batch_size=0)
    assert fit(regressor(), list(pairs())).predict(X).mean.shape == (12, 1)


# ---- series ---------------------------------------------------------------------------------------------------------
def test_arrays_of_words_and_arrays_that_torch_does_not_take() -> None:
    refused(classifier(), "`y` is not an array of numbers", X, np.array(["cat", "dog"] * 6))
    model, frozen = regressor(), X.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, frozen, Y)
    reverse = fit(model, X[::-1], Y[::-1]).predict(X[::-1])
    np.testing.assert_allclose(reverse.mean[::-1], model.predict(X).mean, rtol=1e-5)


def test_series_with_infinite_values_or_columns() -> None:
    series = np.sin(np.arange(30.0))
    model = tagi.Forecaster(net(1, 4), window=4)
    bad = series.copy()
    bad[9] = np.inf
    with pytest.raises(ArgumentError, match="value 9 of the series is inf"):
        fit(model, bad)
    with pytest.raises(ArgumentError, match=r"shape \(30, 2\)"):
        fit(model, np.stack((series, series), 1))
    with pytest.raises(ArgumentError, match="4 values are no more than `window`"):
        fit(model, series[:4])
    with pytest.raises(ArgumentError, match="nothing has been fitted"):
        model.forecast(series, 2)
    fit(model, series[:, None])
    with pytest.raises(ArgumentError, match="value 9 of"):
        model.predict(bad)
