"""Interpolation of one block of a global tensor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class InterpolateFunction:
    """`nn.Interpolate`, called by `apply` like an autograd function, with its arguments in another order."""

    @staticmethod
    def apply(
        input: Tensor, scale_factor: float | None, mode: str, align_corners: bool, *places: Sequence[int]
    ) -> Tensor:
        """`places` are x_start, x_stop, x_global_shape, y_start, y_stop and y_global_shape."""
        from ..nn.interpolate import Interpolate

        return Interpolate(*places, scale_factor, mode, align_corners)(input)  # type: ignore[call-arg, arg-type]
