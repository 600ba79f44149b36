"""A time series as arrays: values with gaps, exogenous columns, and windows over both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import ArgumentError
from .nn.data_struct import Values


class TimeSeries(NamedTuple):
    """Values (n,), NaN where missing, and exogenous columns (n or more, columns), which may extend into the future."""

    values: np.ndarray
    exogenous: np.ndarray


def as_series(series: Values, exogenous: Values | None, columns: int, ahead: int, what: str) -> TimeSeries:
    """The series and its `columns` exogenous columns, which extend `ahead` steps beyond it; raises if malformed."""
    values = np.asarray(series, np.float64)
    if values.ndim != 1 and values.shape != (len(values), 1):
        raise ArgumentError(
            f"{what}: `series` has shape {values.shape}; it is one series of values, (n,) or (n, 1).\n"
            "  fix: one column of it; the others as `exogenous`, if they are known ahead."
        )
    values = values.reshape(-1)
    if (bad := np.flatnonzero(np.isinf(values))).size:
        raise ArgumentError(
            f"{what}: value {bad[0]} of the series is {values[bad[0]]}.\n  fix: NaN for a missing value."
        )
    wanted = len(values) + ahead, columns
    if exogenous is None and columns == 0:
        return TimeSeries(values, np.zeros(wanted))
    if exogenous is None:
        raise ArgumentError(f"{what}: `exogenous` is missing; this forecaster has {columns} columns of it.")
    known = np.asarray(exogenous, np.float64)
    known = known[:, None] if known.ndim == 1 else known
    if known.shape != wanted:
        raise ArgumentError(
            f"{what}: `exogenous` has shape {known.shape}, {wanted} is needed: {columns} columns for {len(values)} values"
            + (f" and {ahead} steps ahead." if ahead else ".")
        )
    if not np.isfinite(known).all():
        row = int(np.argwhere(~np.isfinite(known))[0, 0])
        raise ArgumentError(
            f"{what}: `exogenous` is NaN or infinite in row {row}.\n  fix: fill it, or leave the column out."
        )
    return TimeSeries(values, known)


def covariates(exogenous: np.ndarray, periods: Sequence[float], start: int) -> np.ndarray:
    """Covariates (time, covariate) from time `start` on: sine and cosine of each period, then the exogenous columns."""
    time = start + np.arange(len(exogenous))
    waves = [f(2.0 * np.pi * time / period) for period in periods for f in (np.sin, np.cos)]
    return np.concatenate([np.stack(waves, 1), exogenous], 1) if waves else exogenous


def windows(values: np.ndarray, known: np.ndarray, window: int) -> np.ndarray:
    """Windows (n - window, window * (1 + covariates)): each value with the covariates of the step after it."""
    count = max(len(values) - window, 0)
    if not count:
        return np.zeros((0, window * (1 + known.shape[1])))
    steps = np.concatenate((values[:-1, None], known[1 : len(values)]), 1)  # (time, 1 + covariates)
    rows = np.lib.stride_tricks.sliding_window_view(steps, window, 0)  # (n - window, 1 + covariates, window)
    return rows.transpose(0, 2, 1).reshape(count, -1).copy()
