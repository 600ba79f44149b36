"""Interpolation of a part of a tensor to a part of the result, by global coordinates and without communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gridwise.errors import UnsupportedError
from gridwise.operators.windows.interpolation_weights import InterpolationWeights, linear_weights, nearest_weights


def check_mode(mode: str) -> None:
    if mode not in ("nearest", "linear"):
        raise UnsupportedError(f"`mode` (={mode!r}) must be 'nearest' or 'linear'.")


def weights_of(
    mode: str, n_in: int, n_out: int, scale_factor: float | None, align_corners: bool, x: Tensor
) -> InterpolationWeights:
    """The interpolation weights along one dim, in the dtype of `x`."""
    check_mode(mode)
    if mode == "nearest":
        return nearest_weights(mode, n_in, n_out, scale_factor, x.dtype, x.device)
    return linear_weights(n_in, n_out, scale_factor, align_corners, x.dtype)


class Interpolate(torch.nn.Module):
    """Outputs [y_local_start, y_local_stop) of the global result, from inputs [x_local_start, x_local_stop).

    Where an output needs other inputs, the nearest one at hand takes their place, as in DistDL.
    """

    def __init__(
        self,
        x_local_start: Sequence[int],
        x_local_stop: Sequence[int],
        x_global_shape: Sequence[int],
        y_local_start: Sequence[int],
        y_local_stop: Sequence[int],
        y_global_shape: Sequence[int],
        scale_factor: float | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        super().__init__()
        check_mode(mode)
        self.x_local_start, self.x_local_stop, self.x_global_shape = x_local_start, x_local_stop, x_global_shape
        self.y_local_start, self.y_local_stop, self.y_global_shape = y_local_start, y_local_stop, y_global_shape
        self.scale_factor, self.mode, self.align_corners = scale_factor, mode, align_corners

    def forward(self, input: Tensor) -> Tensor:
        y = input
        for d in reversed(range(2, input.dim())):
            n_in, n_out = int(self.x_global_shape[d]), int(self.y_global_shape[d])
            weights = weights_of(self.mode, n_in, n_out, self.scale_factor, self.align_corners, input)
            outputs = int(self.y_local_start[d]), int(self.y_local_stop[d])
            own = weights.cut(outputs, int(self.x_local_start[d]), input.device)
            inside = tuple(rows.clamp(0, input.shape[d] - 1) for rows in own.rows)
            y = replace(own, rows=inside).take(y, d)
        return y
