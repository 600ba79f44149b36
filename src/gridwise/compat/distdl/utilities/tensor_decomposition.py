"""The blocks of a tensor on a grid: shapes, first and last indices of all of them, as arrays [*grid, dim]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .slicing import assemble_slices, compute_intersection, compute_subshape, range_index


def compute_subtensor_shapes_balanced(global_tensor_structure: Any, P_shape: Sequence[int]) -> np.ndarray:
    """The shapes of balanced blocks."""
    shape = np.asarray(global_tensor_structure.shape)
    shapes = np.empty((*P_shape, len(P_shape)), dtype=int)
    for index in range_index(P_shape):
        shapes[index] = compute_subshape(P_shape, index, shape)
    return shapes


def compute_subtensor_start_indices(subtensor_shapes: np.ndarray) -> np.ndarray:
    """Where each block starts: after the blocks before it, along each dim."""
    return compute_subtensor_stop_indices(subtensor_shapes) - subtensor_shapes


def compute_subtensor_stop_indices(subtensor_shapes: np.ndarray) -> np.ndarray:
    """Where each block stops."""
    dims = subtensor_shapes.shape[-1]
    return np.stack([np.cumsum(subtensor_shapes[..., d], axis=d) for d in range(dims)], axis=-1)


def compute_subtensor_intersection_slice(
    x_start_index: np.ndarray, x_stop_index: np.ndarray, y_start_index: np.ndarray, y_stop_index: np.ndarray
) -> tuple[slice, ...] | None:
    """The part of x that y has too, counted from the start of x; None without any."""
    start, _, shape = compute_intersection(x_start_index, x_stop_index, y_start_index, y_stop_index)
    return None if 0 in shape else assemble_slices(start - x_start_index, start - x_start_index + shape)
