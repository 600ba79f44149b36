"""How good predictions are: errors, likelihood, coverage, calibration. NaN observations are left out."""

from __future__ import annotations

import numpy as np
import torch

from .nn.data_struct import HRCSoftmax
from .tagi_utils import Utils


class HRCSoftmaxMetric:
    """Labels and their error rate, from the outputs of a network with hierarchical softmax."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.utils = Utils()
        self.hrc_softmax: HRCSoftmax = self.utils.get_hierarchical_softmax(num_classes)

    def error_rate(self, m_pred: np.ndarray, v_pred: np.ndarray, label: np.ndarray) -> float:
        """The fraction of samples whose likeliest label is not `label`."""
        return classification_error(self.get_predicted_labels(m_pred, v_pred), label)

    def get_predicted_labels(self, m_pred: np.ndarray, v_pred: np.ndarray) -> np.ndarray:
        """The likeliest label of each sample."""
        batch = np.size(m_pred) // self.hrc_softmax.len
        return self.utils.get_labels(m_pred, v_pred, self.hrc_softmax, self.num_classes, batch)[0]


def mse(prediction: np.ndarray, observation: np.ndarray) -> float:
    """Mean squared error."""
    return float(np.nanmean((prediction - observation) ** 2))


def rmse(prediction: np.ndarray, observation: np.ndarray) -> float:
    """Root mean squared error."""
    return mse(prediction, observation) ** 0.5


def log_likelihood(prediction: np.ndarray, observation: np.ndarray, std: np.ndarray) -> float:
    """The average log-density of the observations under N(prediction, std**2)."""
    z = (observation - prediction) / std
    return float(np.nanmean(-0.5 * np.log(2.0 * np.pi * std**2) - 0.5 * z**2))


def classification_error(prediction: np.ndarray, label: np.ndarray) -> float:
    """The fraction of labels that differ."""
    return float(np.mean(np.asarray(prediction).reshape(-1) != np.asarray(label).reshape(-1)))


def coverage(prediction: np.ndarray, observation: np.ndarray, std: np.ndarray, level: float = 0.95) -> float:
    """The fraction of observations inside the central interval of probability `level`; `level` itself is ideal."""
    inside = np.abs(observation - prediction) <= half_width(level) * std
    return float(np.mean(inside[~np.isnan(observation)]))


def calibration(
    prediction: np.ndarray, observation: np.ndarray, std: np.ndarray, levels: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(levels, coverage at each level): the points of a calibration plot."""
    levels = np.linspace(0.05, 0.95, 19) if levels is None else np.asarray(levels)
    return levels, np.array([coverage(prediction, observation, std, float(p)) for p in levels])


def half_width(level: float) -> float:
    """How many standard deviations the central interval of probability `level` reaches to each side."""
    return float(torch.special.ndtri(torch.tensor(0.5 + 0.5 * level, dtype=torch.float64, device="cpu")))
