"""The halos of DistDL's layers, as arrays (dim, 2): the rows around its block that a worker's windows reach.

    left halo  = start of the block - first row that the first output reads
    right halo = last row that the last output reads - last row of the block

Outputs are balanced on the grid; inputs too, unless `subtensor_shapes` gives the shapes of all blocks. A negative halo
means that the worker has rows that its outputs do not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...utilities.slicing import Numbers, compute_start_index, compute_subshape, compute_subtensor_start_indices

Info = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | tuple[None, None, None, None]


def rows_to_send(
    halo_at: Callable[[Sequence[int]], np.ndarray], grid: Sequence[int], index: Sequence[int]
) -> np.ndarray:
    """(dim, 2): the width of the neighbours' halos on the side of the worker at `index`, along each dim."""
    send = np.zeros((len(index), 2), dtype=int)
    for d in range(len(index)):
        for side, step in enumerate((-1, 1)):
            there = [*index[:d], index[d] + step, *index[d + 1 :]]
            if 0 <= there[d] < grid[d]:
                send[d, side] = halo_at(there)[d, 1 - side]
    return send


class HaloMixin:
    """A mixin for a class with `_compute_min_input_range` and `_compute_max_input_range`."""

    def _compute_exchange_info(
        self,
        x_global_shape: Numbers,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        partition_active: bool,
        partition_shape: Sequence[int],
        partition_index: Sequence[int],
        subtensor_shapes: np.ndarray | None = None,
    ) -> Info:
        """(halo_shape, recv_buffer_shape, send_buffer_shape, needed_ranges), or Nones on an inactive worker."""
        if not partition_active:
            return None, None, None, None
        shape, dim = np.atleast_1d(np.asarray(x_global_shape)), len(partition_shape)
        window = [
            np.pad(given := np.atleast_1d(np.asarray(size)), (dim - len(given), 0), constant_values=fill)
            for size, fill in ((kernel_size, 1), (stride, 1), (padding, 0), (dilation, 1))
        ]

        def halo_at(index: Sequence[int], require_nonnegative: bool = True) -> np.ndarray:
            k, s, p, d = window
            return self._compute_halo_shape(
                partition_shape, index, shape, k, s, p, d, require_nonnegative, subtensor_shapes
            )

        index = [int(i) for i in partition_index]
        halo = halo_at(index).astype(int)
        send = rows_to_send(halo_at, partition_shape, index)
        if subtensor_shapes is None:
            block = compute_subshape(partition_shape, index, shape)
        else:
            block = np.asarray(subtensor_shapes[tuple(index)])
        needed = self._compute_needed_ranges(block, halo_at(index, False)).astype(int)
        return halo, halo.copy(), send, needed

    def _compute_halo_shape(
        self,
        shape: Numbers,
        index: Sequence[int],
        x_global_shape: Numbers,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        require_nonnegative: bool = True,
        subtensor_shapes: np.ndarray | None = None,
    ) -> np.ndarray:
        of: Any = self  # the class it is mixed into gives the windows' ends
        whole = np.asarray(x_global_shape)
        if subtensor_shapes is None:
            start, block = compute_start_index(shape, index, whole), compute_subshape(shape, index, whole)
        else:
            block = np.asarray(subtensor_shapes[tuple(index)])
            start = self._compute_local_start_index(index, subtensor_shapes, block)
        made = self._compute_out_shape(whole, kernel_size, stride, padding, dilation)
        first = compute_start_index(shape, index, made)
        last = first + compute_subshape(shape, index, made) - 1
        window = kernel_size, stride, padding, dilation
        left = start - np.maximum(0, of._compute_min_input_range(first, *window))
        right = np.minimum(whole - 1, of._compute_max_input_range(last, *window)) - (start + block - 1)
        halo = np.stack([left, right], axis=1)
        return np.maximum(halo, 0) if require_nonnegative else halo

    def _compute_local_start_index(
        self, index: Sequence[int], subtensor_shapes: np.ndarray, x_local_shape: Numbers | None = None
    ) -> np.ndarray:
        return compute_subtensor_start_indices(np.asarray(subtensor_shapes))[tuple(index)]

    def _compute_needed_ranges(self, tensor_shape: Numbers, halo_shape: np.ndarray) -> np.ndarray:
        """The range of the padded block that the windows read: leading rows that no output reads are excluded."""
        left, right = halo_shape[:, 0], halo_shape[:, 1]
        stop = np.asarray(tensor_shape) + np.maximum(0, left) + np.maximum(0, right)
        return np.stack([np.maximum(0, -left), stop], axis=1)

    def _compute_out_shape(
        self, in_shape: Numbers, kernel_size: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers
    ) -> np.ndarray:
        shape = np.asarray(in_shape)
        return (
            shape + 2 * np.asarray(padding) - np.asarray(dilation) * (np.asarray(kernel_size) - 1) - 1
        ) // stride + 1
