"""Interpolation of a part of a global tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


class InterpolateFunction:
    """Called by `apply`, like a function of autograd: `nn.Interpolate`, with its arguments in another order."""

    @staticmethod
    def apply(
        input: Tensor,
        scale_factor: Any,
        mode: str,
        align_corners: bool,
        x_start: Sequence[int],
        x_stop: Sequence[int],
        x_global_shape: Sequence[int],
        y_start: Sequence[int],
        y_stop: Sequence[int],
        y_global_shape: Sequence[int],
    ) -> Tensor:
        from ..nn.interpolate import Interpolate

        places = x_start, x_stop, x_global_shape, y_start, y_stop, y_global_shape
        return Interpolate(*places, scale_factor, mode, align_corners)(input)
