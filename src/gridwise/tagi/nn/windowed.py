"""Base of convolutions and pooling, whose outputs depend on windows of the input, some of which reach beyond it.

    alone        rows beyond the image are padding; convolutions leave symmetric padding to torch
    on a grid    rows beyond the block belong to other workers: `halo` fetches all that the block's outputs need,
                 padding included, and returns innovations to the rows' owners, which add them up

Jacobians are never sent: the owner of a row multiplies its innovations by them after they have come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor

from ...errors import ArgumentError
from ..inference.tracing import is_traced
from .base_layer import BaseLayer
from .gaussian import Gaussian, Innovation

Size2 = int | tuple[int, int]
Margins = tuple[tuple[int, int], tuple[int, int]]
"""Rows before and after, columns before and after."""


def pair(value: Size2) -> tuple[int, int]:
    """The pair (height, width), from one number or two."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


class Halo(Protocol):
    """Access of a windowed layer to the rows of other workers (`gridwise.tagi.distributed.carrier`)."""

    drops: Margins | None
    """Excess rows and columns that a transposed convolution makes of the fetched rows."""

    def fetch(self, x: Gaussian) -> Gaussian:
        """Means and variances, without Jacobians, of all rows that this worker's outputs depend on, padded."""

    def give_back(self, delta: Innovation) -> Innovation:
        """The adjoint of `fetch`: innovations of the fetched rows, sent to their owners and added there."""


class WindowedBaseLayer(BaseLayer):
    """Base of layers whose outputs depend on windows of the input."""

    halo: Halo | None = None
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    padding_type: int
    dilation: tuple[int, int]
    transposed: bool = False
    keeps_channels: bool = False
    padding_value: float = 0.0
    """The padding value."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"halo": None}

    def _set_window(
        self, kernel_size: Size2, stride: Size2, padding: Size2, padding_type: int, dilation: Size2 = 1
    ) -> None:
        name = type(self).__name__
        if padding_type not in (0, 1, 2):
            raise ArgumentError(f"{name}: `padding_type` (={padding_type}) is 0, 1 or 2.")
        if min(*pair(kernel_size), *pair(stride), *pair(dilation)) < 1 or min(pair(padding)) < 0:
            raise ArgumentError(
                f"{name}: `kernel_size` (={kernel_size}), `stride` (={stride}) and `dilation` (={dilation}) are at least "
                f"one, `padding` (={padding}) is at least zero."
            )
        self.kernel_size, self.stride, self.dilation = pair(kernel_size), pair(stride), pair(dilation)
        self.padding, self.padding_type = pair(padding) if padding_type else (0, 0), padding_type

    # ---- sizes ------------------------------------------------------------------------------------------------------
    def output_hw(self, hw: Sequence[int]) -> tuple[int, int]:
        """Height and width of the output for an input of height and width `hw`."""
        sides = 2 if self.padding_type == 1 else 1
        height, width = (self._outputs_along(d, n, sides * self.padding[d]) for d, n in enumerate(hw))
        return height, width

    def _output_hw_of_rows(self, rows: Sequence[int]) -> list[int]:
        """Height and width of the output for fetched rows, already padded and possibly none."""
        return [max(0, self._outputs_along(d, n, 0)) if n else 0 for d, n in enumerate(rows)]

    def _outputs_along(self, d: int, n: int, padding: int) -> int:
        span = self.dilation[d] * (self.kernel_size[d] - 1) + 1
        if self.transposed:
            return self.stride[d] * (n - 1) + span - padding
        return (n + padding - span) // self.stride[d] + 1

    def _record_sizes(self, channels: int, height: int, width: int) -> None:
        if is_traced() or self.halo is not None:
            return
        if self.keeps_channels:
            self.out_channels = channels
        self.in_channels, self.in_height, self.in_width = channels, height, width
        self.out_height, self.out_width = self.output_hw((height, width))
        self.input_size = channels * height * width
        self.output_size = self.out_channels * self.out_height * self.out_width

    def get_layer_info(self) -> str:
        k = self.kernel_size[0] if self.kernel_size[0] == self.kernel_size[1] else self.kernel_size
        sizes = f"{self.in_channels},{self.out_channels},{self.out_width},{self.out_height},{k}"
        return f"{self.get_layer_name()}({sizes})"

    # ---- rows beyond the image, or beyond the block -----------------------------------------------------------------
    def _fetched_rows(self, x: Gaussian) -> Gaussian:
        """The rows that the outputs depend on, without Jacobians."""
        if self.halo is not None:
            return self.halo.fetch(x)
        return Gaussian(self._pad(x.mu), None if x.var is None else self._pad(x.var))

    def _returned_rows(self, delta: Innovation, shape: tuple[int, ...]) -> Innovation:
        """Innovations of the input, of local shape `shape`, from those of the fetched rows."""
        if self.halo is not None:
            return self.halo.give_back(delta)
        (top, _), (left, _) = self._margins()
        return Innovation(*(d[..., top : top + shape[-2], left : left + shape[-1]] for d in delta))

    def _pad(self, x: Tensor) -> Tensor:
        rows, columns = self._margins()
        return F.pad(x, (*columns, *rows), value=self.padding_value) if any((*rows, *columns)) else x

    def _margins(self) -> Margins:
        """The padding added to an image before torch's kernel is called."""
        (h, w), before = self.padding, self.padding_type == 1
        return (h * before, h), (w * before, w)
