"""Pictures of predictions: intervals around a mean, and calibration (matplotlib: `pip install gridwise[viz]`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .estimator import Prediction
from .metric import calibration


def plot_intervals(
    x: np.ndarray,
    prediction: Prediction,
    observation: np.ndarray | None = None,
    levels: tuple[float, ...] = (0.5, 0.95),
    ax: Any = None,
) -> Any:
    """The mean with a band for each level, and the observations as dots; returns the axes."""
    ax = _axes(ax)
    order = np.argsort(np.asarray(x).reshape(-1))
    across = np.asarray(x).reshape(-1)[order]
    for level in sorted(levels, reverse=True):
        low, high = (side.reshape(-1)[order] for side in prediction.interval(level))
        shade = 0.15 + 0.4 * (1 - level)  # a narrow band darker than a wide one, in the legend too
        ax.fill_between(across, low, high, alpha=shade, color="tab:blue", linewidth=0, label=f"{level:.0%}")
    ax.plot(across, prediction.mean.reshape(-1)[order], color="tab:blue", label="mean")
    if observation is not None:
        ax.plot(across, np.asarray(observation).reshape(-1)[order], ".", color="black", markersize=3, label="observed")
    ax.legend(framealpha=0.85, edgecolor="none")
    return ax


def plot_calibration(prediction: Prediction, observation: np.ndarray, ax: Any = None) -> Any:
    """How often the observations lie in intervals that claim a probability, against that probability."""
    ax = _axes(ax)
    levels, found = calibration(prediction.mean, observation, prediction.std)
    ax.plot([0, 1], [0, 1], color="grey", linewidth=1, label="ideal")
    ax.plot(levels, found, "o-", markersize=4, label="observed")
    ax.set(xlabel="probability of the interval", ylabel="fraction inside", xlim=(0, 1), ylim=(0, 1))
    ax.legend(framealpha=0.85, edgecolor="none")
    return ax


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4))[1]
