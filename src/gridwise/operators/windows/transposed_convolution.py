"""Transposed convolutions: a box of the output depends on the inputs whose windows reach it.

    full[s i + d k] += w[k] x[i]        y = full[p : p + outputs]

Outputs [o0, o1) depend on the inputs [a, b) of `grid.transposed_need`. From these torch computes the rows s a, ... of
`full`, of which o0 + p, ... are wanted. Its own padding q and output padding r usually select exactly these rows:

    rows before o0 + p to drop     j = o0 + p - s a                               =  q
    rows to drop at the end        s (b - a - 1) + d (k - 1) + 1 - j - (o1 - o0)  =  q - r,   0 <= r < max(s, d)

Any remaining rows are cropped; rows that no input reaches are padded with the bias alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from ...grid import Box, Interval, group_runs, groups_of, transposed_need
from ..call import OperatorCall
from ..on_boxes import Local
from ..table import operator
from .convolution import WindowedProduct, convolution, of_padding

CONV_TRANSPOSE: dict[int, Callable[..., Tensor]] = {
    1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d,
}  # fmt: skip


@dataclass(frozen=True)
class OutputCrop:
    """How to cut out the outputs of one dim: torch's paddings, then `crop` rows (before, after; negative pads)."""

    padding: int
    output_padding: int
    crop: Interval


def cut_out(drop: Interval, stride: int, dilation: int) -> OutputCrop:
    """How to drop `drop` rows (before, after); a negative number counts rows that no input reaches.

    >>> cut_out((1, 0), stride=2, dilation=1), cut_out((1, 3), stride=1, dilation=1)
    (OutputCrop(padding=1, output_padding=1, crop=(0, 0)), OutputCrop(padding=1, output_padding=0, crop=(0, 2)))
    """
    before, after = drop
    most = max(stride, dilation) - 1
    padding = min(max(before, 0), max(after, 0) + most)  # more would drop wanted rows at the end
    missing = min(max(padding - after, 0), most)
    return OutputCrop(padding, missing, (before - padding, after - padding + missing))


@dataclass(frozen=True)
class TransposedWindows:
    """The outputs that each of `extent` inputs reaches along one dim."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    extent: int

    def need(self, outputs: Interval) -> Interval:
        """The inputs that reach the outputs."""
        return transposed_need(outputs, self.kernel, self.stride, self.padding, self.dilation, self.extent)

    def cut(self, outputs: Interval, inputs: Interval) -> OutputCrop:
        """How the outputs are cut out of what torch makes of the inputs."""
        before = outputs[0] + self.padding - self.stride * inputs[0]
        made = self.stride * (inputs[1] - inputs[0] - 1) + self.dilation * (self.kernel - 1) + 1
        return cut_out((before, made - before - (outputs[1] - outputs[0])), self.stride, self.dilation)


@operator("convolution", "_convolution")
def any_convolution(call: OperatorCall) -> Local:
    """Torch's one operator for all kinds."""
    return transposed_convolution(call) if call["transposed"] else convolution(call)


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(call: OperatorCall) -> Local:
    weight, sizes = call["weight"].shape, (call["stride"], call["padding"], call["dilation"], call["groups"])
    made = TransposedOnBoxes.of(call["input"].shape, weight, call["bias"] is not None, *sizes)
    return Local(made.needs, made.run, flops=2.0 * prod(weight) / weight[1] / prod(made.stride))


@dataclass(frozen=True)
class TransposedOnBoxes(WindowedProduct):
    """The operator; its weight is (input channels, output channels of a group, *kernel)."""

    windows: tuple[TransposedWindows, ...]
    window = TransposedWindows

    def _rows(self, box: Box) -> list[tuple[Interval, Interval]]:
        """For each dim of space the outputs, and the inputs that reach them."""
        ends = zip(self.windows, box.start[self.lead :], box.stop[self.lead :], strict=True)
        return [((a, b), window.need((a, b))) for window, a, b in ends]

    def needs(self, box: Box) -> list[Box]:
        outputs, per_group = self.outputs_of(box), self.weight[1]
        first, last = groups_of(outputs, per_group)
        per_input = self.weight[0] // self.groups
        inputs, columns = (first * per_input, last * per_input), (0, per_group)
        if last - first == 1:
            columns = outputs[0] - first * per_group, outputs[1] - first * per_group
        weight = inputs, columns, *((0, n) for n in self.weight[2:])
        return self.boxes(box, inputs, (rows for _, rows in self._rows(box)), weight)

    def cuts(self, box: Box) -> list[OutputCrop]:
        """How the outputs are cut out of what torch makes of the inputs that reach them."""
        return [window.cut(*each) for window, each in zip(self.windows, self._rows(box), strict=True)]

    def run(self, box: Box, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not x.numel():
            return of_padding(box, self.lead, x, weight, bias)
        cuts = self.cuts(box)
        crops = [-n for cut in reversed(cuts) for n in cut.crop]
        pads = any(n > 0 for n in crops)
        y = self._in_groups(x, weight, None if pads else bias, cuts, self.outputs_of(box))
        if any(crops):
            y = F.pad(y, crops)
        return y + bias.to(y.dtype).view(-1, *(1,) * len(cuts)) if pads and bias is not None else y

    def _in_groups(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, cuts: Sequence[OutputCrop], outputs: Interval
    ) -> Tensor:
        """One call of torch for all whole groups, and one for each partial group at the ends."""
        convolve = CONV_TRANSPOSE[len(cuts)]
        padding, extra = [cut.padding for cut in cuts], [cut.output_padding for cut in cuts]
        per_group, per_input = self.weight[1], self.weight[0] // self.groups
        runs, base = group_runs(outputs, per_group), groups_of(outputs, per_group)[0]
        parts = []
        for (a, b), (first, last) in runs:
            inputs, kernel, some = x, weight, bias
            if len(runs) > 1:
                rows = (first - base) * per_input, (last - first) * per_input
                inputs, kernel = x.narrow(self.lead - 1, *rows), weight.narrow(0, *rows)
                kernel = kernel[:, a - first * per_group : b - first * per_group] if last - first == 1 else kernel
                some = None if bias is None else bias[a - outputs[0] : b - outputs[0]]
            parts.append(convolve(inputs, kernel, some, self.stride, padding, extra, last - first, self.dilation))
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.lead - 1)
