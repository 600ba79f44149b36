"""Claimed and found probabilities, of numbers and of classes; the score that rewards both sharpness and honesty."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import gridwise.tagi as tagi
from gridwise.errors import ArgumentError
from gridwise.tagi import metric, plots


def predictions(std: float) -> tuple[tagi.Prediction, np.ndarray]:
    y = np.random.default_rng(0).normal(size=4000)
    return tagi.Prediction(np.zeros(4000), np.full(4000, std), np.zeros(4000)), y


def test_honest_intervals_lie_on_the_diagonal_and_others_do_not() -> None:
    honest = tagi.calibration_curve(*predictions(1.0))
    assert honest.error < 0.02
    assert (honest.rows == 4000).all()
    narrow, wide = tagi.calibration_curve(*predictions(0.5)), tagi.calibration_curve(*predictions(2.0))
    assert (narrow.found < narrow.claimed).all()
    assert (wide.found > wide.claimed).all()
    assert min(narrow.error, wide.error) > 0.1
    p, y = predictions(1.0)
    y[::2] = np.nan
    assert (tagi.calibration_curve(p, y).rows == 2000).all()


def test_classes_that_are_as_often_right_as_they_claim() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet((0.5, 0.5, 0.5), 20_000)
    label = (rng.uniform(size=(20_000, 1)) > p.cumsum(1)).sum(1)
    curve = tagi.calibration_curve(p, label)
    assert curve.error < 0.01
    assert curve.rows.sum() == 20_000
    sharpened = p**3 / (p**3).sum(1, keepdims=True)
    assert tagi.calibration_curve(tagi.ClassPrediction(p.argmax(1), sharpened), label).error > 0.05
    with pytest.raises(ArgumentError, match=r"(?s)shape \(3, 2\).*fix"):
        tagi.calibration_curve(np.ones((3, 2)) / 2, np.array(["a", "b", "a"]))
    with pytest.raises(ArgumentError, match="bins"):
        tagi.calibration_curve(p, label, bins=0)


def test_crps_against_its_definition() -> None:
    """The integral of the squared distance between the distribution and the step at the observation."""
    grid = np.linspace(-30, 30, 600_001)
    for mean, std, y in ((0.3, 1.2, 2.0), (-1.0, 0.4, -1.1)):
        squares = (_cdf((grid - mean) / std) - (grid >= y)) ** 2
        from_the_definition = float(torch.trapezoid(torch.as_tensor(squares), torch.as_tensor(grid)))
        assert metric.crps(np.array([mean]), np.array([y]), std) == pytest.approx(from_the_definition, abs=1e-4)
    assert metric.crps(np.array([1.0, 0.0]), np.array([4.0, np.nan]), 0.0) == pytest.approx(3.0)
    p, y = predictions(1.0)
    scores = [metric.crps(p.mean, y, s) for s in (0.5, 1.0, 2.0)]
    assert scores[1] == min(scores)


def _cdf(z: np.ndarray) -> np.ndarray:
    import torch

    return torch.special.ndtr(torch.from_numpy(z)).numpy()


def test_pictures_of_calibration() -> None:
    p, y = predictions(1.0)
    ax = plots.plot_calibration(p, y)
    plots.plot_calibration(p, y, ax, "again")
    assert len(ax.lines) == 3
    other = plots.plot_calibration(np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([0, 0]))
    assert other.get_ylabel() == "fraction that is right"
    plt.close("all")
