"""Calibration of predictions: the probabilities that they claim against the frequencies that are found.

numbers   an interval claims to contain a fraction of the observations   found: the fraction that it contains
classes   a label claims to be right with its probability                found: the fraction of them that is right
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import ArgumentError
from .estimators.classification import ClassPrediction
from .estimators.prediction import Prediction
from .metric import calibration


class Calibration(NamedTuple):
    """Points of a calibration curve.

    Parameters
    ----------
    claimed : probabilities that the predictions claim
    found : frequencies that were observed
    rows : observations behind each point

    Attributes
    ----------
    claimed, found
        Claimed probabilities and observed frequencies; equal where the predictions are calibrated.
    rows
        Observations behind each point.

    Examples
    --------
    >>> gridwise.tagi.Calibration(np.array([0.5, 0.95]), np.array([0.45, 0.9]), np.array([20, 20])).error
    0.04999999999999996
    """

    claimed: np.ndarray
    found: np.ndarray
    rows: np.ndarray

    @property
    def error(self) -> float:
        """The mean distance between claimed and found, each point weighted by its number of observations."""
        return float((np.abs(self.claimed - self.found) * self.rows).sum() / max(self.rows.sum(), 1))


def calibration_curve(
    prediction: Prediction | ClassPrediction | np.ndarray,
    observation: np.ndarray,
    levels: np.ndarray | None = None,
    bins: int = 10,
) -> Calibration:
    """Claimed probabilities and observed frequencies of predictions, for a calibration plot.

    Parameters
    ----------
    prediction
        For numbers a `Prediction`; for classes a `ClassPrediction`, or probabilities (row, class).
    observation
        Numbers, NaN where missing; or the indices 0, 1, ... of the true classes.
    levels
        For numbers: probabilities of the intervals, 5 % to 95 % by default.
    bins
        For classes: labels are sorted by their probability into this many bins of equal width; empty bins are left out.

    Examples
    --------
    >>> import numpy as np
    >>> import gridwise.tagi as tagi
    >>> y = np.random.default_rng(0).normal(size=1000)
    >>> curve = tagi.calibration_curve(tagi.Prediction(np.zeros(1000), np.ones(1000), np.zeros(1000)), y)
    >>> curve.error < 0.05
    True
    """
    if isinstance(prediction, Prediction):
        claimed, found = calibration(prediction.mean, observation, prediction.std, levels)
        known = int((~np.isnan(np.asarray(observation, np.float64))).sum())
        return Calibration(claimed, found, np.full(len(claimed), known))
    p = prediction.probability if isinstance(prediction, ClassPrediction) else np.asarray(prediction, np.float64)
    label = np.asarray(observation)
    if p.ndim != 2 or label.shape != p.shape[:1] or label.dtype.kind not in "biu":
        raise ArgumentError(
            f"calibration_curve: probabilities of shape {p.shape} and labels of shape {label.shape} and type {label.dtype}.\n"
            "  fix: probabilities (row, class), and for each row the place of its class, a whole number from 0 on."
        )
    if bins < 1:
        raise ArgumentError(f"calibration_curve: `bins` (={bins}) is less than one.")
    sure, right = p.max(1), p.argmax(1) == label
    place = np.clip((sure * bins).astype(int), 0, bins - 1)
    used = np.unique(place)
    count = np.array([(place == k).sum() for k in used], dtype=int)
    claimed, found = (np.array([values[place == k].mean() for k in used]) for values in (sure, right))
    return Calibration(claimed, found, count)
