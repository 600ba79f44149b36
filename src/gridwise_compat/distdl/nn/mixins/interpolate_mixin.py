"""The rows around its block that a worker's interpolated outputs read, as arrays (dim, 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gridwise.partition import Partition

from ...utilities.slicing import compute_start_index, compute_stop_index, compute_subshape
from ...utilities.torch import TensorStructure
from ..interpolate import weights_of
from .halo_mixin import Info, rows_to_send


class InterpolateMixin:
    """The input rows that outputs [start, stop) of a global result need, dim by dim."""

    def _compute_needed(
        self,
        mode: str,
        outputs: tuple[int, int],
        n_out: int,
        n_in: int,
        scale_factor: float | None,
        align_corners: bool,
    ) -> tuple[int, int]:
        like = torch.empty(0, dtype=torch.float64)
        return weights_of(mode, n_in, n_out, scale_factor, align_corners, like).need(outputs)

    def _compute_exchange_info(
        self,
        P_x: Partition,
        x_global_tensor_structure: TensorStructure,
        y_global_tensor_structure: TensorStructure,
        mode: str,
        scale_factor: float | None,
        align_corners: bool,
    ) -> Info:
        """(halo_shape, recv_buffer_shape, send_buffer_shape, needed_ranges), or Nones on an inactive worker."""
        if not P_x.active or P_x.index is None:
            return None, None, None, None
        x, y = (np.asarray(each.shape) for each in (x_global_tensor_structure, y_global_tensor_structure))
        grid, index = np.asarray(P_x.shape), [int(i) for i in P_x.index]

        def halo_at(place: Sequence[int]) -> np.ndarray:
            start, stop = compute_start_index(grid, place, x), compute_stop_index(grid, place, x)
            first, last = compute_start_index(grid, place, y), compute_stop_index(grid, place, y)
            rows = []
            for d in range(len(x)):
                need = (int(start[d]), int(stop[d]))
                if d > 1:
                    outputs = int(first[d]), int(last[d])
                    need = self._compute_needed(mode, outputs, int(y[d]), int(x[d]), scale_factor, align_corners)
                rows.append((int(start[d]) - need[0], need[1] - int(stop[d])))
            return np.array(rows, dtype=int)

        signed = halo_at(index)
        halo, send = np.maximum(signed, 0), np.maximum(rows_to_send(halo_at, P_x.shape, index), 0)
        stop = compute_subshape(grid, index, x) + halo[:, 0] + signed[:, 1]
        return halo, halo.copy(), send, np.stack([np.maximum(0, -signed[:, 0]), stop], axis=1)
