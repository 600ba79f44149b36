"""The coordinates of a position on a grid, counted in C order or in Fortran order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cartesian_index_c(shape: Sequence[int], index: int) -> np.ndarray:
    return np.array(np.unravel_index(index, tuple(shape), order="C"), dtype=int)


def cartesian_index_f(shape: Sequence[int], index: int) -> np.ndarray:
    return np.array(np.unravel_index(index, tuple(shape), order="F"), dtype=int)
