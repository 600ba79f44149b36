"""Windows as dims of their own: `Tensor.unfold`; `F.unfold`, which lays them out in columns; `F.fold`, its adjoint."""

from __future__ import annotations

from math import prod

import torch.nn.functional as F
from torch import Tensor

from ...grid import Box, Interval, transposed_need, window_need
from ..call import OperatorCall
from ..on_boxes import Local
from ..table import operator
from .one_dim import Windows, each


@operator("unfold")
def unfold(call: OperatorCall) -> Local:
    """Windows along one dim, in a new last dim."""
    x, size, step = call["self"], call["size"], call["step"]
    dim = call["dimension"] % max(1, x.dim)

    def needs(box: Box) -> list[Box]:
        ends = list(zip(box.start, box.stop, strict=True))
        rows = window_need(ends[dim], size, step, 0, 1)
        return [Box.of_intervals([*ends[:dim], rows, *ends[dim + 1 : -1]])]

    def run(box: Box, x: Tensor) -> Tensor:
        y = x.unfold(dim, size, step)
        return y if y.shape == box.shape else y.narrow(-1, box.start[-1], box.shape[-1])

    return Local(needs, run)


class Columns:
    """Windows of an image in columns, row by row: ``(batch, channels and places in the window, windows)``."""

    def __init__(self, call: OperatorCall, image: tuple[int, ...]) -> None:
        names = ("kernel_size", "stride", "padding", "dilation")
        self.kernel, self.stride, self.padding, self.dilation = (each(call[name], 2) for name in names)
        sizes = zip(self.kernel, self.stride, self.padding, self.dilation, image[-2:], strict=True)
        self.windows = [Windows(*each) for each in sizes]
        self.places, self.image = prod(self.kernel), image[-2:]
        """How many places a window has, and the image's extents."""
        lines = zip(self.windows, self.padding, strict=True)
        self.counts = [(w.extent + 2 * p - w.span) // w.stride + 1 for w, p in lines]
        """How many windows there are in each direction."""

    def rectangle(self, start: int, stop: int) -> tuple[Interval, Interval]:
        """The rows and columns of the smallest rectangle of windows that has the given ones."""
        width = self.counts[1]
        rows = start // width, (stop - 1) // width + 1
        if rows[1] - rows[0] == 1:
            return rows, (start - rows[0] * width, stop - rows[0] * width)
        return rows, (0, width)


@operator("im2col")
def columns(call: OperatorCall) -> Local:
    x = call["self"]
    of, lead = Columns(call, x.shape), x.dim - 3

    def needs(box: Box) -> list[Box]:
        channels = box.start[-2] // of.places, -(-box.stop[-2] // of.places)
        space = [w.need(*ends) for w, ends in zip(of.windows, of.rectangle(box.start[-1], box.stop[-1]), strict=True)]
        return [Box.of_intervals([*zip(box.start[:lead], box.stop[:lead], strict=True), channels, *space])]

    def run(box: Box, x: Tensor) -> Tensor:
        if not x.numel():
            return x.sum().expand(box.shape)
        rectangle = of.rectangle(box.start[-1], box.stop[-1])
        pads = [w.padding(*ends) for w, ends in zip(of.windows, rectangle, strict=True)]
        padding, extents = tuple(pad for pad, _ in pads), x.shape[-2:]
        y = F.unfold(x, of.kernel, of.dilation, padding, of.stride)
        made = [(n + 2 * p - w.span) // w.stride + 1 for n, p, w in zip(extents, padding, of.windows, strict=True)]
        y = y.unflatten(-1, made)
        for d, ((a, b), (_, surplus)) in zip((-2, -1), zip(rectangle, pads, strict=True), strict=True):
            y = y if y.shape[d] == b - a else y.narrow(d, surplus, b - a)
        y, first = y.flatten(-2), rectangle[0][0] * of.counts[1] + rectangle[1][0]
        if y.shape[-1] != box.shape[-1]:
            y = y.narrow(-1, box.start[-1] - first, box.shape[-1])
        return y if y.shape[-2] == box.shape[-2] else y.narrow(-2, box.start[-2] % of.places, box.shape[-2])

    return Local(needs, run)


@operator("col2im")
def image(call: OperatorCall) -> Local:
    """The sum of all windows that lie over each element."""
    size = tuple(call["output_size"])
    of, lead = Columns(call, size), call["self"].dim - 2

    def rows_of(box: Box) -> Interval:
        sizes = of.kernel[0], of.stride[0], of.padding[0], of.dilation[0]
        return transposed_need((box.start[-2], box.stop[-2]), *sizes, of.counts[0])

    def needs(box: Box) -> list[Box]:
        channels, rows, width = (box.start[-3] * of.places, box.stop[-3] * of.places), rows_of(box), of.counts[1]
        windows = rows[0] * width, rows[1] * width
        return [Box.of_intervals([*zip(box.start[:lead], box.stop[:lead], strict=True), channels, windows])]

    def run(box: Box, x: Tensor) -> Tensor:
        if not x.numel():
            return x.sum().expand(box.shape)
        first, last = rows_of(box)
        made = of.stride[0] * (last - first - 1) + of.windows[0].span
        y = F.fold(x, (made, size[1]), of.kernel, of.dilation, (0, of.padding[1]), of.stride)
        before = box.start[-2] + of.padding[0] - of.stride[0] * first
        after = made - before - box.shape[-2]
        if before or after:  # fewer rows, or rows beyond all windows
            y = F.pad(y, (0, 0, -before, -after))
        return y if y.shape[-1] == box.shape[-1] else y.narrow(-1, box.start[-1], box.shape[-1])

    return Local(needs, run, float(of.places))
