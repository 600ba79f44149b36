"""Pooling of Gaussian images.

Average over windows of k = kh kw units, taken as independent; padding counts as units that are exactly zero:

    mu  = sum(m) / k           delta_in = J adjoint(delta) / k
    var = sum(v) / k**2        Delta_in = J**2 adjoint(Delta) / k**2

Maximum: the unit with the largest *mean* is passed on with its variance (the first one, where several are equal);
innovations go back to that unit and add up where windows overlap.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base_layer import BaseLayer
from .conv2d import Size2, pair
from .gaussian import Gaussian, Innovation


class _Pool2d(BaseLayer):
    """Window, stride and padding, and the sizes that follow from them."""

    outside = 0.0  # what stands beyond the image

    def __init__(self, kernel_size: Size2, stride: Size2, padding: Size2, padding_type: int) -> None:
        super().__init__()
        self.kernel_size = pair(kernel_size)
        self.stride = self.kernel_size if stride == -1 else pair(stride)
        self.padding = pair(padding) if padding_type else (0, 0)
        self.padding_type = padding_type

    def _pad(self, x: Tensor) -> Tensor:
        if self.padding == (0, 0):
            return x
        (h, w), before = self.padding, self.padding_type == 1
        return F.pad(x, (w * before, w, h * before, h), value=self.outside)

    def _unpad(self, x: Tensor, shape: torch.Size) -> Tensor:
        top, left = self.padding if self.padding_type == 1 else (0, 0)
        return x[..., top : top + shape[-2], left : left + shape[-1]]

    def _note_sizes(self, x: Tensor, y: Tensor) -> None:
        if not torch.compiler.is_compiling():
            self.in_channels, self.in_height, self.in_width = x.shape[1:]
            self.out_channels, self.out_height, self.out_width = y.shape[1:]
            self.input_size, self.output_size = x.shape[1:].numel(), y.shape[1:].numel()

    def get_layer_info(self) -> str:
        k = self.kernel_size[0] if self.kernel_size[0] == self.kernel_size[1] else self.kernel_size
        sizes = f"{self.in_channels},{self.out_channels},{self.out_width},{self.out_height},{k}"
        return f"{self.get_layer_name()}({sizes})"


class AvgPool2d(_Pool2d):
    """Average pooling; `stride=-1` means the kernel size.

    Parameters
    ----------
    kernel_size, stride, padding
        One number or (height, width).
    padding_type
        1: `padding` on all sides; 2: at the bottom and on the right; 0: none.
    """

    def __init__(self, kernel_size: Size2, stride: Size2 = -1, padding: Size2 = 0, padding_type: int = 0) -> None:
        super().__init__(kernel_size, stride, padding, padding_type)

    def forward(self, x: Gaussian) -> Gaussian:
        area = self.kernel_size[0] * self.kernel_size[1]
        mu = F.avg_pool2d(self._pad(x.mu), self.kernel_size, self.stride)
        var = None
        if x.var is not None:
            var = F.avg_pool2d(self._pad(x.var), self.kernel_size, self.stride, divisor_override=area * area)
        self._note_sizes(x.mu, mu)
        self._keep(x.jcb, x.mu.shape)
        return Gaussian(mu, var)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        jcb, shape = self._recall()
        if not need_input:
            return None
        area = self.kernel_size[0] * self.kernel_size[1]
        back = Innovation(self._spread(delta.mu, shape, area), self._spread(delta.var, shape, area * area))
        return back.through(jcb)

    def _spread(self, d: Tensor, shape: torch.Size, divisor: int) -> Tensor:
        like = self._pad(d.new_empty(1).expand(shape))
        d = d.reshape(*shape[:2], *self._output_hw(like.shape)).contiguous()
        spread = torch.ops.aten.avg_pool2d_backward(
            d, like, self.kernel_size, self.stride, [0, 0], False, True, divisor
        )
        return self._unpad(spread, shape)

    def _output_hw(self, shape: torch.Size) -> list[int]:
        return [(n - k) // s + 1 for n, k, s in zip(shape[2:], self.kernel_size, self.stride, strict=True)]


class MaxPool2d(_Pool2d):
    """Pooling of the unit with the largest mean.

    Parameters
    ----------
    kernel_size, stride, padding
        One number or (height, width); `stride=-1` means the kernel size.
    padding_type
        1: `padding` on all sides; 2: at the bottom and on the right; 0: none.
    """

    outside = float("-inf")

    def __init__(self, kernel_size: Size2, stride: Size2 = 1, padding: Size2 = 0, padding_type: int = 0) -> None:
        super().__init__(kernel_size, stride, padding, padding_type)

    def forward(self, x: Gaussian) -> Gaussian:
        padded = self._pad(x.mu)
        mu, index = F.max_pool2d(padded, self.kernel_size, self.stride, return_indices=True)
        var = None
        if x.var is not None:
            var = self._pad(x.var).flatten(2).gather(2, index.flatten(2)).reshape(mu.shape)
        self._note_sizes(x.mu, mu)
        self._keep(index, x.jcb, x.mu.shape, padded.shape)
        return Gaussian(mu, var)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        index, jcb, shape, padded = self._recall()
        if not need_input:
            return None

        def scatter(d: Tensor) -> Tensor:
            image = d.new_zeros(*padded[:2], padded[2] * padded[3])
            image.scatter_add_(2, index.flatten(2), d.reshape(index.shape).flatten(2))
            return self._unpad(image.reshape(padded), shape)

        return Innovation(scatter(delta.mu), scatter(delta.var)).through(jcb)
