"""The same elements at other places: pixels and channels, rolls and flips."""

from __future__ import annotations

from torch import Tensor

from ...grid import Box, Interval
from ..call import OperatorCall
from ..labels import along
from ..on_boxes import Local
from ..table import NotOnBoxes, operator
from .padding import CircularRows


@operator("pixel_shuffle")
def pixel_shuffle(call: OperatorCall) -> Local:
    """Channels to pixels: a square of pixels is one element of as many channels."""
    factor, shuffle = call["upscale_factor"], call.locally()
    channel = call.result.dim - 3

    def needs(box: Box) -> list[Box]:
        channels = box.start[channel] * factor**2, box.stop[channel] * factor**2
        space = [_coarse(box, d, factor) for d in (channel + 1, channel + 2)]
        lead = zip(box.start[:channel], box.stop[:channel], strict=True)
        return [Box.of_intervals([*lead, channels, *space])]

    def run(box: Box, x: Tensor) -> Tensor:
        y: Tensor = shuffle(x)
        for d in (channel + 1, channel + 2):
            y = _kept(y, box, d, box.start[d] % factor)
        return y

    return Local(needs, run)


@operator("pixel_unshuffle")
def pixel_unshuffle(call: OperatorCall) -> Local:
    """Pixels to channels."""
    factor, unshuffle = call["downscale_factor"], call.locally()
    channel = call.result.dim - 3

    def needs(box: Box) -> list[Box]:
        space = [(box.start[d] * factor, box.stop[d] * factor) for d in (channel + 1, channel + 2)]
        lead = zip(box.start[:channel], box.stop[:channel], strict=True)
        return [Box.of_intervals([*lead, _coarse(box, channel, factor**2), *space])]

    def run(box: Box, x: Tensor) -> Tensor:
        return _kept(unshuffle(x), box, channel, box.start[channel] % factor**2)

    return Local(needs, run)


@operator("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(call: OperatorCall) -> Local:
    return along(call, [1])


@operator("roll")
def roll(call: OperatorCall) -> Local:
    """Circular padding that crops as much at the other end."""
    x = call["self"]
    shifts, dims = call["shifts"], call["dims"]
    if not dims:
        raise NotOnBoxes("it rolls all elements in one line")
    before = [0] * x.dim
    for shift, d in zip(shifts, dims, strict=True):
        before[d] += shift
    rows = CircularRows(x.shape, tuple(before))
    return Local(rows.needs, rows.run)


@operator("flip")
def flip(call: OperatorCall) -> Local:
    x = call["self"]
    dims = call.dims("dims", x.dim) if call["dims"] else ()

    def needs(box: Box) -> list[Box]:
        ends = zip(box.start, box.stop, x.shape, strict=True)
        return [Box.of_intervals((n - b, n - a) if d in dims else (a, b) for d, (a, b, n) in enumerate(ends))]

    return Local(needs, lambda box, x: x.flip(dims))


def _coarse(box: Box, d: int, factor: int) -> Interval:
    """The interval of elements that are divided into `factor` each."""
    return box.start[d] // factor, -(-box.stop[d] // factor)


def _kept(y: Tensor, box: Box, d: int, first: int) -> Tensor:
    length = box.stop[d] - box.start[d]
    return y if y.shape[d] == length else y.narrow(d, first, length)
