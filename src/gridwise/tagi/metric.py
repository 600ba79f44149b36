"""Scores of predictions: errors, likelihood, CRPS, coverage, calibration.

Observations that are NaN are left out. A prediction that is NaN is not: errors and likelihoods are then NaN, and its
interval contains nothing.
"""

from __future__ import annotations

import numpy as np
import torch

from ..errors import ArgumentError
from ..nn.docstrings import documented_like
from .nn.data_struct import HRCSoftmax
from .tagi_utils import Utils


class HRCSoftmaxMetric:
    """Labels and their error rate, from the outputs of a network with hierarchical softmax.

    Parameters
    ----------
    num_classes : number of classes

    Examples
    --------
    >>> metric = gridwise.tagi.HRCSoftmaxMetric(10)
    >>> metric.hrc_softmax.len
    11
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.utils = Utils()
        self.hrc_softmax: HRCSoftmax = self.utils.get_hierarchical_softmax(num_classes)

    def error_rate(self, m_pred: np.ndarray, v_pred: np.ndarray, label: np.ndarray) -> float:
        """The fraction of samples whose likeliest label is not `label`."""
        return classification_error(self.get_predicted_labels(m_pred, v_pred), label)

    def get_predicted_labels(self, m_pred: np.ndarray, v_pred: np.ndarray) -> np.ndarray:
        """The likeliest label of each sample."""
        nodes = self.hrc_softmax.len
        if np.size(m_pred) != np.size(v_pred) or np.size(m_pred) % nodes:
            raise ArgumentError(
                f"get_predicted_labels: {np.size(m_pred)} means and {np.size(v_pred)} variances came in, {nodes} of each "
                f"are needed for a sample of {self.num_classes} classes."
            )
        batch = np.size(m_pred) // nodes
        return self.utils.get_labels(m_pred, v_pred, self.hrc_softmax, self.num_classes, batch)[0]


def mse(prediction: np.ndarray, observation: np.ndarray) -> float:
    """Mean squared error.

    Parameters
    ----------
    prediction, observation : arrays of one shape; observations that are NaN are left out

    Examples
    --------
    >>> gridwise.tagi.metric.mse(np.array([1.0, 2.0, 5.0]), np.array([2.0, 1.0, np.nan]))
    1.0
    """
    guess, observed = _same_shape("mse", prediction=prediction, observation=observation)
    return _mean_over_observed((guess - observed) ** 2, observed)


@documented_like(mse)
def rmse(prediction: np.ndarray, observation: np.ndarray) -> float:
    """Root mean squared error."""
    guess, observed = _same_shape("rmse", prediction=prediction, observation=observation)
    return mse(guess, observed) ** 0.5


def log_likelihood(prediction: np.ndarray, observation: np.ndarray, std: np.ndarray | float) -> float:
    """The average log-density of the observations under N(prediction, std**2).

    Parameters
    ----------
    prediction, observation : arrays of one shape; observations that are NaN are left out
    std : standard deviations of the predictions

    Examples
    --------
    >>> round(float(gridwise.tagi.metric.log_likelihood(np.zeros(2), np.zeros(2), np.ones(2))), 3)
    -0.919
    """
    guess, observed, spread = _same_shape("log_likelihood", prediction=prediction, observation=observation, std=std)
    z = (observed - guess) / spread
    return _mean_over_observed(-0.5 * np.log(2.0 * np.pi * spread**2) - 0.5 * z**2, observed)


def crps(prediction: np.ndarray, observation: np.ndarray, std: np.ndarray | float) -> float:
    """The mean continuous max_pool_keys probability score of N(prediction, std**2): an error in the units of the observations.

    For a prediction without spread it is the absolute error; of two predictions that are equally far off, the more
    confident one scores worse.
    """
    guess, observed, spread = _same_shape("crps", prediction=prediction, observation=observation, std=std)
    z = torch.from_numpy(np.asarray((observed - guess) / np.maximum(spread, np.finfo(np.float64).tiny)))
    density = torch.exp(-0.5 * z * z).numpy() / np.sqrt(2.0 * np.pi)
    within = torch.erf(z / 2.0**0.5).numpy()  # P(|N(0, 1)| < |z|), with the sign of z
    score = (observed - guess) * within + spread * (2.0 * density - 1.0 / np.sqrt(np.pi))
    return _mean_over_observed(score, observed)


def classification_error(prediction: np.ndarray, label: np.ndarray) -> float:
    """The fraction of labels that differ.

    Parameters
    ----------
    prediction, label : arrays of labels

    Examples
    --------
    >>> float(gridwise.tagi.metric.classification_error(np.array([1, 2]), np.array([1, 3])))
    0.5
    """
    guess, truth = _same_shape("classification_error", prediction=prediction, label=label)
    return float(np.mean(guess != truth))


def coverage(prediction: np.ndarray, observation: np.ndarray, std: np.ndarray | float, level: float = 0.95) -> float:
    """The fraction of observations inside the central interval of probability `level`; ideally `level` itself.

    Parameters
    ----------
    prediction, observation : arrays of one shape; observations that are NaN are left out
    std : standard deviations of the predictions
    level : probability of the interval

    Examples
    --------
    >>> float(gridwise.tagi.metric.coverage(np.zeros(2), np.array([0.0, 9.0]), np.ones(2)))
    0.5
    """
    guess, observed, spread = _same_shape("coverage", prediction=prediction, observation=observation, std=std)
    return _mean_over_observed(np.abs(observed - guess) <= half_width(level) * spread, observed)


def calibration(
    prediction: np.ndarray, observation: np.ndarray, std: np.ndarray | float, levels: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Levels, and the coverage at each level: the points of a calibration plot.

    Parameters
    ----------
    prediction, observation : arrays of one shape; observations that are NaN are left out
    std : standard deviations of the predictions
    levels : probabilities of the intervals

    Examples
    --------
    >>> found = gridwise.tagi.metric.calibration(np.zeros(3), np.array([0.0, 0.5, 9.0]), np.ones(3))
    """
    levels = np.linspace(0.05, 0.95, 19) if levels is None else np.asarray(levels)
    return levels, np.array([coverage(prediction, observation, std, float(p)) for p in levels])


def half_width(level: float) -> float:
    """Half the width of the central interval of probability `level`, in standard deviations.

    Parameters
    ----------
    level : the probability of an interval around the mean

    Examples
    --------
    >>> round(gridwise.tagi.metric.half_width(0.95), 2)
    1.96
    """
    if not 0.0 < level < 1.0:
        raise ArgumentError(
            f"the central interval: `level` (={level}) is a probability between 0 and 1, both excluded.\n"
            "  fix: 0.95 for 95 %."
        )
    return float(torch.special.ndtri(torch.tensor(0.5 + 0.5 * level, dtype=torch.float64, device="cpu")))


def _mean_over_observed(values: np.ndarray, observed: np.ndarray) -> float:
    """The mean where there are observations; NaN if a prediction there is NaN."""
    return float(np.mean(np.asarray(values)[~np.isnan(observed)]))


def _same_shape(what: str, **arrays: np.ndarray | float) -> list[np.ndarray]:
    """The arrays in one shape, numbers as float64: (n, 1) counts as (n,); only a scalar `std` is broadcast."""
    given = {name: np.asarray(value) for name, value in arrays.items()}
    given = {name: value.astype(np.float64) if value.dtype.kind in "biuf" else value for name, value in given.items()}
    shapes = {name: _without_trailing_ones(value.shape) for name, value in given.items()}
    wanted = next(iter(shapes.values()))
    if any(shape != wanted and not (name == "std" and shape == ()) for name, shape in shapes.items()):
        shapes_given = ", ".join(f"`{name}` has shape {value.shape}" for name, value in given.items())
        raise ArgumentError(f"{what}: {shapes_given}.\n  fix: one shape for all; (n, 1) and (n,) count as the same.")
    return [value.reshape(shapes[name]) for name, value in given.items()]


def _without_trailing_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape
