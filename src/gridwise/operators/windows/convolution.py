"""Convolutions: a box of the output sees windows of the input, and the rows of the weight for its channels.

    y[n, o] = b[o] + sum_c w[o, c] * x[n, c]        * the windowed sum over space

With groups, output channels see the input channels of their groups only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...costs.convolutions import is_large
from ...grid import Box, Interval, Shape, group_runs, groups_of
from ..call import OperatorCall
from ..on_boxes import Local
from ..table import operator
from .one_dim import Windows, cropped, crops_of, each, needed

Convolve = Callable[..., Tensor]
CONV: dict[int, Convolve] = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


@operator("conv1d", "conv2d", "conv3d")
def convolution(call: OperatorCall) -> Local:
    """A convolution with numeric or named padding."""
    weight, sizes = call["weight"].shape, (call["stride"], call["padding"], call["dilation"], call["groups"])
    made = ConvolutionOnBoxes.of(call["input"].shape, weight, call["bias"] is not None, *sizes)
    return Local(made.needs, made.run, flops=2.0 * prod(weight[1:]))


@dataclass(frozen=True)
class WindowedProduct:
    """What plain and transposed convolutions share: `lead` dims before those of space (batch and channels, or channels)."""

    lead: int
    windows: tuple[Any, ...]
    stride: Shape
    dilation: Shape
    groups: int
    weight: Shape
    """The shape of the weight."""
    has_bias: bool
    window: ClassVar[Callable[..., Any]]
    """Makes what each dim of space has, of kernel, stride, padding, dilation and extent."""

    @classmethod
    def of(
        cls,
        x: Shape,
        weight: Shape,
        has_bias: bool,
        stride: int | Sequence[int],
        padding: int | Sequence[int] | str,
        dilation: int | Sequence[int],
        groups: int,
    ) -> Self:
        """That of an input with the shape `x`, with torch's arguments; output padding is known from the output."""
        dims, kernel = len(weight) - 2, weight[2:]
        strides, dilations = each(stride, dims), each(dilation, dims)
        if isinstance(padding, str):
            same = padding == "same"
            before = tuple(d * (k - 1) // 2 if same else 0 for k, d in zip(kernel, dilations, strict=True))
        else:
            before = each(padding, dims)
        windows = tuple(map(cls.window, kernel, strides, before, dilations, x[-dims:]))
        return cls(len(x) - dims, windows, strides, dilations, groups, weight, has_bias)

    def outputs_of(self, box: Box) -> Interval:
        """The output channels of a box."""
        return box.start[self.lead - 1], box.stop[self.lead - 1]

    def boxes(self, box: Box, inputs: Interval, rows: Iterable[Interval], weight: Iterable[Interval]) -> list[Box]:
        """The boxes of input (these channels and rows), weight and bias that a box of the output needs."""
        batch = [(box.start[0], box.stop[0])] if self.lead == 2 else []
        found = [Box.of_intervals([*batch, inputs, *rows]), Box.of_intervals(weight)]
        return [*found, Box.of_intervals([self.outputs_of(box)])] if self.has_bias else found


@dataclass(frozen=True)
class ConvolutionOnBoxes(WindowedProduct):
    """The operator."""

    windows: tuple[Windows, ...]
    window = Windows

    @property
    def per_group(self) -> int:
        """Output channels of a group."""
        return self.weight[0] // self.groups

    def inputs_of(self, outputs: Interval) -> Interval:
        """The input channels of the groups of some output channels."""
        first, last = groups_of(outputs, self.per_group)
        return first * self.weight[1], last * self.weight[1]

    def needs(self, box: Box) -> list[Box]:
        outputs = self.outputs_of(box)
        weight = outputs, *((0, n) for n in self.weight[1:])
        return self.boxes(box, self.inputs_of(outputs), needed(self.windows, box, self.lead), weight)

    def run(self, box: Box, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not x.numel():
            return of_padding(box, self.lead, x, weight, bias)
        ends = zip(self.windows, box.start[self.lead :], box.stop[self.lead :], strict=True)
        padding, surplus = zip(*(w.padding(a, b) for w, a, b in ends), strict=True)
        y = self.in_groups(x, weight, bias, padding, self.outputs_of(box))
        return cropped(y, crops_of(surplus, box, self.lead))

    def in_groups(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int], outputs: Interval
    ) -> Tensor:
        """One call of torch for all whole groups, and one for each partial group at the ends.

        The input has the channels of the groups of `outputs`, or as many of each as the weight has.
        """
        convolve, window = CONV[len(self.windows)], (self.stride, padding, self.dilation)
        runs = group_runs(outputs, self.per_group)
        if len(runs) == 1:
            first, last = runs[0][1]
            if self.groups == 1 and self.is_small_part(x):
                return torch.mkldnn_convolution(x, weight, bias, padding, self.stride, self.dilation, 1)
            return convolve(x, weight, bias, *window, last - first)
        parts, base, (offset, _), per_input = [], groups_of(outputs, self.per_group)[0], outputs, weight.shape[1]
        for (a, b), (first, last) in runs:
            inputs = x.narrow(self.lead - 1, (first - base) * per_input, (last - first) * per_input)
            some = None if bias is None else bias[a - offset : b - offset]
            parts.append(convolve(inputs, weight[a - offset : b - offset], some, *window, last - first))
        return torch.cat(parts, self.lead - 1)

    def is_small_part(self, x: Tensor) -> bool:
        """Whether torch would give the whole input to oneDNN, but not this part of it: to a kernel that is much slower.

        The gradients are those of torch's choice, so this is for calls without.
        """
        if torch.is_grad_enabled() or x.dtype != torch.float32 or x.device.type != "cpu" or self.lead != 2:
            return False
        if len(self.windows) < 2 or max(self.weight[2:]) == 1 or torch.is_autocast_enabled("cpu") or is_large(x.shape):
            return False
        whole = (*x.shape[:2], *(w.extent for w in self.windows))
        return is_large(whole) and type(x) is Tensor and _has_onednn()


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def of_padding(box: Box, lead: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs that no element of the input reaches: the bias, or zero. In autograd they depend on all tensors."""
    nothing = CONV[1](x.new_zeros(1, 1, 1), weight.new_zeros(1, 1, 1))  # in the dtype that a convolution makes
    y = nothing.new_zeros(()) + x.sum().to(nothing.dtype) + weight.flatten()[:0].sum().to(nothing.dtype)
    if bias is not None:
        y = y + bias.to(y.dtype).view(-1, *(1,) * (len(box.shape) - lead))
    return y.expand(box.shape)
