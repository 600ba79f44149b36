"""Balanced blocks of a tensor on a grid, as arrays: along each axis the first `n mod p` blocks are one longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from .torch import TensorStructure

INDEX_DTYPE = np.int64
MAX_INT = np.iinfo(INDEX_DTYPE).max
MIN_INT = np.iinfo(INDEX_DTYPE).min

Numbers = Sequence[int] | np.ndarray | int


def _arrays(*values: Numbers) -> tuple[np.ndarray, ...]:
    return tuple(np.atleast_1d(np.asarray(value, dtype=INDEX_DTYPE)) for value in values)


def compute_subshape(P_shape: Numbers, index: Numbers, shape: Numbers) -> np.ndarray:
    """The shape of the block at `index`."""
    workers, at, extents = _arrays(P_shape, index, shape)
    return extents // workers + (at < extents % workers)


def compute_start_index(P_shape: Numbers, index: Numbers, shape: Numbers) -> np.ndarray:
    """The first index of the block at `index`."""
    workers, at, extents = _arrays(P_shape, index, shape)
    return extents // workers * at + np.minimum(at, extents % workers)


def compute_stop_index(P_shape: Numbers, index: Numbers, shape: Numbers) -> np.ndarray:
    """One past the last index of the block at `index`."""
    return compute_start_index(P_shape, index, shape) + compute_subshape(P_shape, index, shape)


def compute_intersection(
    r0_start: Numbers, r0_stop: Numbers, r1_start: Numbers, r1_stop: Numbers
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(start, stop, shape) of the intersection of two boxes."""
    start, stop = np.maximum(r0_start, r1_start), np.minimum(r0_stop, r1_stop)
    return start, stop, np.maximum(stop - start, 0)


def assemble_slices(start_index: Sequence[int], stop_index: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start, stop, None) for start, stop in zip(start_index, stop_index, strict=True))


def compute_partition_intersection(
    P_r_shape: Numbers, P_r_index: Numbers, P_s_shape: Numbers, P_s_index: Numbers, x_global_shape: Numbers
) -> tuple[slice, ...] | None:
    """The part of block r that block s of another grid shares, relative to the start of r; None if there is none."""
    r_start, r_stop = (f(P_r_shape, P_r_index, x_global_shape) for f in (compute_start_index, compute_stop_index))
    s_start, s_stop = (f(P_s_shape, P_s_index, x_global_shape) for f in (compute_start_index, compute_stop_index))
    return compute_subtensor_intersection_slice(r_start, r_stop, s_start, s_stop)


def compute_nd_slice_volume(slices: Sequence[slice]) -> int:
    return int(np.prod(compute_nd_slice_shape(slices)))


def compute_nd_slice_shape(slices: Sequence[slice]) -> np.ndarray:
    return np.array([s.stop - s.start for s in slices])


def range_index(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every index of an array of this shape, row-major."""
    return product(*(range(extent) for extent in shape))


def worker_layout(shape: Sequence[int]) -> np.ndarray:
    """The number of each worker of a grid, as an array of the grid's shape."""
    return np.arange(int(np.prod(shape))).reshape(tuple(int(n) for n in shape))


def filtered_range_index(shape: Sequence[int], filter: Callable[[Any], bool]) -> Iterator[tuple[int, ...]]:
    """The indices of an array of this shape for which `filter` is true."""
    return (index for index in range_index(shape) if filter(index))


def assemble_index_filter(index: Sequence[int], dims: Sequence[int], invert: bool = False) -> Callable[[Any], bool]:
    """A predicate: whether another index equals `index` along `dims`, or, inverted, along all other dims."""
    named = {int(d) for d in np.atleast_1d(np.asarray(dims, dtype=int))}
    compared = [d for d in range(len(index)) if (d in named) != invert]
    return lambda other: all(other[d] == index[d] for d in compared)


# ---- all blocks at once, as arrays [*grid, dim] ----------------------------------------------------------------------
def compute_subtensor_shapes_balanced(global_tensor_structure: TensorStructure, P_shape: Sequence[int]) -> np.ndarray:
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
    """The part of x that y shares, relative to the start of x; None if there is none."""
    start, _, shape = compute_intersection(x_start_index, x_stop_index, y_start_index, y_stop_index)
    return None if 0 in shape else assemble_slices(start - x_start_index, start - x_start_index + shape)
