"""Measures of predictions: columns and vectors compare as equal, other shapes and levels beyond (0, 1) are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gridwise.tagi as tagi
from gridwise.errors import ArgumentError
from gridwise.tagi import metric

MEASURES: list[Callable[[np.ndarray, np.ndarray], object]] = [
    metric.mse,
    metric.rmse,
    metric.classification_error,
    lambda p, y: metric.log_likelihood(p, y, np.full(p.shape, 0.5)),
    lambda p, y: metric.log_likelihood(p, y, 0.5),
    lambda p, y: metric.coverage(p, y, np.full(p.shape, 0.5)),
    lambda p, y: metric.crps(p, y, np.full(p.shape, 0.5)),
    lambda p, y: metric.calibration(p, y, np.full(p.shape, 0.5))[1].tolist(),
]


@pytest.mark.parametrize("measure", MEASURES)
def test_a_column_is_a_vector_and_other_shapes_are_refused(measure: Callable[[np.ndarray, np.ndarray], object]) -> None:
    y = np.arange(6.0)
    p = y + np.array([0.0, 0.1, 0.2, 0.3, 0.4, 2.0])
    expected = measure(p, y)
    assert measure(p[:, None], y) == expected
    assert measure(p, y[:, None]) == expected
    for other in (y[:5], y[:1], y.reshape(2, 3), y[None], np.float64(1.0)):
        with pytest.raises(ArgumentError, match=r"shape \(6,\)[^\n]*\n  fix:"):
            measure(p, np.asarray(other))


def test_values_with_a_column_and_a_missing_observation() -> None:
    p, y = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 4.0, np.nan])
    assert metric.mse(p, y) == 2.0
    assert metric.coverage(p, y, np.full(3, 0.5)) == 0.5


@pytest.mark.parametrize("measure", [m for m in MEASURES if m is not metric.classification_error])
def test_a_prediction_that_is_nan_is_not_left_out(measure: Callable[[np.ndarray, np.ndarray], object]) -> None:
    found = np.asarray(measure(np.array([0.0, np.nan]), np.zeros(2)))
    assert (np.isnan(found) | (found == 0.5)).all()  # no interval contains an observation without a prediction
    assert measure(np.array([0.0, np.nan]), np.array([0.0, np.nan])) == measure(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("level", [95, 0.0, 1.0, -0.1, float("nan")])
def test_levels_are_probabilities(level: float) -> None:
    p = tagi.Prediction(np.zeros(3), np.ones(3), np.ones(3))
    with pytest.raises(ArgumentError, match=r"`level` \(=[^\n]*\n  fix: 0\.95"):
        p.interval(level)
    with pytest.raises(ArgumentError, match="level"):
        metric.coverage(p.mean, p.mean, p.std, level)


def test_labels_need_all_nodes_of_a_sample() -> None:
    with pytest.raises(ArgumentError, match="10 means and 11 variances"):
        metric.HRCSoftmaxMetric(10).get_predicted_labels(np.zeros(10), np.zeros(11))
