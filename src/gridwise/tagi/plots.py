"""Plots of predictions: intervals around a mean, and calibration (matplotlib: `pip install gridwise[viz]`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError, UnsupportedError
from .calibration import calibration_curve
from .estimators.classification import ClassPrediction
from .estimators.prediction import Prediction


def plot_intervals(
    x: np.ndarray,
    prediction: Prediction,
    observation: np.ndarray | None = None,
    levels: tuple[float, ...] = (0.5, 0.95),
    ax: Any = None,
) -> Any:
    """Plot the mean with a band for each level, and the observations as dots; returns the axes.

    Parameters
    ----------
    x : one number for each prediction
    prediction : from a regressor or forecaster
    observation : drawn as dots, if given
    levels : probability of each band
    ax : the axes to draw into; created if not given

    Examples
    --------
    >>> import matplotlib; matplotlib.use('Agg')
    >>> prediction = gridwise.tagi.Prediction(np.zeros(3), np.ones(3), np.ones(3))
    >>> axes = gridwise.tagi.plots.plot_intervals(np.arange(3), prediction)
    """
    across = np.asarray(x)
    shapes = {"x": across.shape, "prediction.mean": prediction.mean.shape}
    if observation is not None:
        shapes["observation"] = np.asarray(observation).shape
    if any(shape not in ((across.size,), (across.size, 1)) for shape in shapes.values()):
        described = ", ".join(f"`{name}` has shape {shape}" for name, shape in shapes.items())
        raise ArgumentError(
            f"plot_intervals: {described}; a picture has one quantity along each axis.\n"
            "  fix: one column of `x`, and a Prediction of one column of mean, std and model_std."
        )
    ax = _axes(ax)
    order = np.argsort(across.reshape(-1))
    across = across.reshape(-1)[order]
    for level in sorted(levels, reverse=True):
        low, high = (side.reshape(-1)[order] for side in prediction.interval(level))
        shade = 0.15 + 0.4 * (1 - level)  # narrow bands darker than wide ones, in the legend too
        ax.fill_between(across, low, high, alpha=shade, color="tab:blue", linewidth=0, label=f"{level:.0%}")
    ax.plot(across, prediction.mean.reshape(-1)[order], color="tab:blue", label="mean")
    if observation is not None:
        ax.plot(across, np.asarray(observation).reshape(-1)[order], ".", color="black", markersize=3, label="observed")
    ax.legend(framealpha=0.85, edgecolor="none")
    return ax


def plot_calibration(
    prediction: Prediction | ClassPrediction | np.ndarray,
    observation: np.ndarray,
    ax: Any = None,
    label: str = "observed",
) -> Any:
    """Plot observed frequencies against claimed probabilities, of intervals or labels (`calibration_curve`).

    Parameters
    ----------
    prediction : from an estimator
    observation : the values or labels that were observed
    ax : the axes to draw into; created if not given
    label : for the legend

    Examples
    --------
    >>> import matplotlib; matplotlib.use('Agg')
    >>> prediction = gridwise.tagi.Prediction(np.zeros(3), np.ones(3), np.ones(3))
    >>> axes = gridwise.tagi.plots.plot_calibration(prediction, np.array([0.0, 0.5, 2.0]))
    """
    curve = calibration_curve(prediction, observation)
    ax = _axes(ax)
    if not ax.lines:
        ax.plot([0, 1], [0, 1], color="grey", linewidth=1, label="ideal")
    ax.plot(curve.claimed, curve.found, "o-", markersize=4, label=label)
    if isinstance(prediction, Prediction):
        words = "probability of the interval", "fraction inside"
    else:
        words = "probability of the label", "fraction that is right"
    ax.set(xlabel=words[0], ylabel=words[1], xlim=(0, 1), ylim=(0, 1))
    ax.legend(framealpha=0.85, edgecolor="none")
    return ax


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise UnsupportedError("pictures need matplotlib.\n  fix: pip install 'gridwise[viz]'.") from error
    return plt.subplots(figsize=(6, 4))[1]
