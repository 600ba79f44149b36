"""Pooling of Gaussian images.

Average over windows of k = kh kw units, taken as independent; padding counts as units of exactly zero:

    mu  = sum(m) / k           delta_in = J adjoint(delta) / k
    var = sum(v) / k**2        Delta_in = J**2 adjoint(Delta) / k**2

Maximum: the unit with the largest *mean* is passed on with its variance (the first of several equal ones); innovations
go back to that unit and add up where windows overlap.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import ArgumentError
from ..inference.jumps import max_pool_keys
from .gaussian import Gaussian, Innovation
from .windowed import Size2, WindowedBaseLayer


class Pool2d(WindowedBaseLayer):
    """Base of pooling layers: window, stride and padding; the channels stay the same."""

    keeps_channels = True

    def __init__(self, kernel_size: Size2, stride: Size2, padding: Size2, padding_type: int) -> None:
        super().__init__()
        self._set_window(kernel_size, kernel_size if stride == -1 else stride, padding, padding_type)

    def as_input(self, flat: Tensor) -> Tensor:
        if flat.ndim == 4 or not self.input_size:
            return flat
        return self._samples(flat, self.input_size).reshape(-1, self.in_channels, self.in_height, self.in_width)


class AvgPool2d(Pool2d):
    """Average pooling; `stride=-1` means the kernel size.

    Parameters
    ----------
    kernel_size, stride, padding
        One number or (height, width).
    padding_type
        1: `padding` on all sides; 2: at the bottom and on the right; 0: none.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, in_width=8, in_height=8), nn.AvgPool2d(2))
    >>> mu, var = net(np.ones((2, 3 * 8 * 8), dtype='float32'))
    >>> mu.shape
    (128,)
    """

    def __init__(self, kernel_size: Size2, stride: Size2 = -1, padding: Size2 = 0, padding_type: int = 0) -> None:
        super().__init__(kernel_size, stride, padding, padding_type)

    def forward(self, x: Gaussian) -> Gaussian:
        area = self.kernel_size[0] * self.kernel_size[1]
        rows = self._fetched_rows(x)
        mu = self._average(rows.mu, area)
        var = None if rows.var is None else self._average(rows.var, area * area)
        self._record_sizes(*x.mu.shape[1:])
        self._keep(x.jcb, x.mu.shape, rows.mu.shape)
        return Gaussian(mu, var)

    def _average(self, x: Tensor, divisor: int) -> Tensor:
        if not x.numel():
            return x.new_zeros(*x.shape[:2], *self._output_hw_of_rows(x.shape[2:]))
        return F.avg_pool2d(x, self.kernel_size, self.stride, divisor_override=divisor)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        jcb, shape, rows = self._recall()
        if not need_input:
            return None
        area = self.kernel_size[0] * self.kernel_size[1]
        back = Innovation(self._spread(delta.mu, rows, area), self._spread(delta.var, rows, area * area))
        return self._returned_rows(back, shape).through(jcb)

    def _spread(self, d: Tensor, rows: torch.Size, divisor: int) -> Tensor:
        d = d.reshape(*rows[:2], *self._output_hw_of_rows(rows[2:])).contiguous()
        if not d.numel():
            return d.new_zeros(rows)
        like = d.new_empty(1).expand(rows)
        return torch.ops.aten.avg_pool2d_backward(d, like, self.kernel_size, self.stride, [0, 0], False, True, divisor)


class MaxPool2d(Pool2d):
    """Max pooling: the unit with the largest mean of each window.

    Parameters
    ----------
    kernel_size, stride, padding
        One number or (height, width); `stride=-1` means the kernel size.
    padding_type
        1: `padding` on all sides; 2: at the bottom and on the right; 0: none.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, in_width=8, in_height=8), nn.MaxPool2d(2, 2))
    >>> mu, var = net(np.ones((2, 3 * 8 * 8), dtype='float32'))
    >>> mu.shape
    (128,)
    """

    padding_value = float("-inf")

    def __init__(self, kernel_size: Size2, stride: Size2 = 1, padding: Size2 = 0, padding_type: int = 0) -> None:
        super().__init__(kernel_size, stride, padding, padding_type)
        if any(p >= k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise ArgumentError(
                f"MaxPool2d: `padding` (={self.padding}) is not less than `kernel_size` (={self.kernel_size}): some windows "
                "would contain padding only, which has no maximum.\n  fix: a smaller padding."
            )

    def forward(self, x: Gaussian) -> Gaussian:
        rows = self._fetched_rows(x)
        if rows.mu.numel():
            mu, index = F.max_pool2d(max_pool_keys(rows.mu), self.kernel_size, self.stride, return_indices=True)
        else:
            mu = rows.mu.new_zeros(*rows.mu.shape[:2], *self._output_hw_of_rows(rows.mu.shape[2:]))
            index = mu.long()
        var = None
        if rows.var is not None:
            var = rows.var.flatten(2).gather(2, index.flatten(2)).reshape(mu.shape)
        self._record_sizes(*x.mu.shape[1:])
        self._keep(index, x.jcb, x.mu.shape, rows.mu.shape)
        return Gaussian(mu, var)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        index, jcb, shape, rows = self._recall()
        if not need_input:
            return None

        def scatter(d: Tensor) -> Tensor:
            image = d.new_zeros(*rows[:2], rows[2] * rows[3])
            return image.scatter_add_(2, index.flatten(2), d.reshape(index.shape).flatten(2)).reshape(rows)

        return self._returned_rows(Innovation(scatter(delta.mu), scatter(delta.var)), shape).through(jcb)
