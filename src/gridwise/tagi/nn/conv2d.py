"""Convolution and its transpose, with Gaussian kernels and images of any shape.

With `*` the cross-correlation (or its transpose), W, S the moments of the kernel, m, v those of the input:

    mu_z  = m * W + mu_b
    var_z = (v + m**2) * S + v * W**2 + var_b              zero padding adds neither mean nor variance

    delta_in     = input adjoint(delta, W) J               s1 = kernel adjoint(m, delta)
    delta_var_in = input adjoint(Delta, W**2) J**2         s2 = kernel adjoint(m**2, Delta)

Both adjoints on a line are computed by one call of torch's `convolution_backward`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import ArgumentError
from .base_layer import Fans, ParametricLayer, Shape
from .gaussian import Gaussian, Innovation
from .windowed import Margins, Size2, WindowedBaseLayer


class Conv2d(WindowedBaseLayer, ParametricLayer):
    """A 2-d convolution with Gaussian kernels.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups
        As in `torch.nn.Conv2d`; sizes are one number or (height, width).
    padding_type
        1: `padding` on all sides; 2: `padding` at the bottom and on the right only; 0: none.
    in_width, in_height
        The size of the image, needed only for flat inputs (of a network's first layer).

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, in_width=8, in_height=8))
    >>> mu, var = net(np.ones((2, 3 * 8 * 8), dtype='float32'))
    >>> mu.shape
    (512,)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2,
        bias: bool = True,
        stride: Size2 = 1,
        padding: Size2 = 0,
        padding_type: int = 1,
        in_width: int = 0,
        in_height: int = 0,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "He",
        *,
        dilation: Size2 = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(bias=bias)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{type(self).__name__}: `groups` (={groups}) must divide `in_channels` (={in_channels}) and "
                f"`out_channels` (={out_channels})."
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self._set_window(kernel_size, stride, padding, padding_type, dilation)
        self.in_width, self.in_height = in_width, in_height
        self.declared_hw = in_height, in_width  # in_height and in_width change with every input
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method
        if in_width and in_height:
            self._record_sizes(in_channels, in_height, in_width)
        self.init_weight_bias()

    # ---- shapes -----------------------------------------------------------------------------------------------------
    def as_input(self, flat: Tensor) -> Tensor:
        if flat.ndim == 4:
            return flat
        shape = self.flat_shape()
        if shape is None:
            raise ArgumentError(
                f"{self.get_layer_info()}: flat values came in, and `in_width`, `in_height` were not given.\n"
                "  fix: give both to the layer, or pass a tensor of shape (batch, channel, height, width)."
            )
        return self._samples(flat, math.prod(shape)).reshape(-1, *shape)

    def flat_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of a flat input: as declared, else as in the last call; None if unknown."""
        height, width = self.declared_hw if all(self.declared_hw) else (self.in_height, self.in_width)
        return (self.in_channels, height, width) if height and width else None

    def _shapes(self) -> tuple[Shape, Shape, Fans]:
        area = self.kernel_size[0] * self.kernel_size[1]
        fans = area * self.in_channels // self.groups, area * self.out_channels // self.groups
        ends = (self.in_channels, self.out_channels) if self.transposed else (self.out_channels, self.in_channels)
        return (ends[0], ends[1] // self.groups, *self.kernel_size), (self.out_channels,), fans

    # ---- moments ----------------------------------------------------------------------------------------------------
    def forward(self, x: Gaussian) -> Gaussian:
        if x.mu.ndim != 4:
            x = x.map(self.as_input)
        if x.mu.shape[1] != self.in_channels:
            raise ArgumentError(
                f"{self.get_layer_info()}: the input of shape {tuple(x.mu.shape)} has {x.mu.shape[1]} channels, "
                f"`in_channels` (={self.in_channels})."
            )
        self._record_sizes(*x.mu.shape[1:])
        m, v, _ = self._fetched_rows(x)
        squares = self.mu_w * self.mu_w
        second = m * m if v is None else torch.addcmul(v, m, m)
        mu = self._convolve(m, self.mu_w, self.mu_b)
        var = self._convolve(second, self.var_w, self.var_b)
        if v is not None:
            var = var + self._convolve(v, squares, None)
        self._keep(m, squares, x.jcb, x.mu.shape, mu.shape)
        return Gaussian(mu, var)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        m, squares, jcb, shape, outputs = self._recall()
        d = delta.reshape(*outputs)
        mu_in, s1 = self._adjoints(self._uncrop(d.mu), m, self.mu_w, need_input)
        var_in, s2 = self._adjoints(self._uncrop(d.var), m * m, squares, need_input)
        self._sums_ready(shape[0], (s1, s2), (d.mu.sum((0, 2, 3)), d.var.sum((0, 2, 3))))
        return self._returned_rows(Innovation(mu_in, var_in), shape).through(jcb) if need_input else None

    # ---- torch's kernels --------------------------------------------------------------------------------------------
    def _symmetric(self) -> list[int]:
        return list(self.padding) if self.padding_type == 1 and self.halo is None else [0, 0]

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.transposed and self.halo is not None:  # may have to add rows that consist of the bias alone
            out = self._crop(self._kernel(x, weight, None))
            return out if bias is None else out + bias[:, None, None]
        return self._crop(self._kernel(x, weight, bias))

    def _kernel(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not x.numel() and self.halo is not None:  # torch refuses images without rows; a block may have none
            return x.new_zeros(x.shape[0], self.out_channels, *self._output_hw_of_rows(x.shape[2:]))
        return torch.ops.aten.convolution(
            x, weight, bias, self.stride, self._symmetric(), self.dilation, self.transposed, [0, 0], self.groups
        )

    def _adjoints(self, d: Tensor, x: Tensor, weight: Tensor, need_input: bool) -> tuple[Tensor, Tensor]:
        if self.halo is not None and not (d.numel() and x.numel()):
            return torch.zeros_like(x), torch.zeros_like(weight)
        at_input, at_weight, _ = torch.ops.aten.convolution_backward(
            d, x, weight, None, self.stride, self._symmetric(), self.dilation,
            self.transposed, [0, 0], self.groups, [need_input, True, False],
        )  # fmt: skip
        return at_input if need_input else d, at_weight

    # ---- padding type 2: a convolution pads at the bottom and right, its transpose crops there ----------------------
    def _margins(self) -> Margins:
        here = self.padding_type == 2 and not self.transposed
        return ((0, self.padding[0]), (0, self.padding[1])) if here else ((0, 0), (0, 0))

    def _drops(self) -> Margins | None:
        """Excess rows and columns that the kernel makes; negative where some are missing, which are added as zeros."""
        if self.halo is not None:
            return self.halo.drops
        here = self.padding_type == 2 and self.transposed
        return ((0, self.padding[0]), (0, self.padding[1])) if here else None

    def _crop(self, y: Tensor) -> Tensor:
        drops = self._drops()
        return y if drops is None else F.pad(y, [-n for drop in reversed(drops) for n in drop])

    def _uncrop(self, d: Tensor) -> Tensor:
        drops = self._drops()
        return d if drops is None else F.pad(d, [n for drop in reversed(drops) for n in drop])


class ConvTranspose2d(Conv2d):
    """A 2-d transposed convolution with Gaussian kernels.

    The same moments as `Conv2d`, with a kernel (in, out, height, width) applied in the opposite direction.
    The output has `stride (n - 1) + dilation (k - 1) + 1 - 2 padding` rows for n input rows; with `padding_type` 2
    `padding` is cropped once, at the bottom and on the right.

    Parameters
    ----------
    in_channels, ..., groups : as in `Conv2d`

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2, in_width=8, in_height=8))
    >>> mu, var = net(np.ones((2, 3 * 8 * 8), dtype='float32'))
    >>> mu.shape
    (2048,)
    """

    transposed = True
