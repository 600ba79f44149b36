"""Convolutions of large blocks without a padded copy: the own block first, then what the rows of others add to it.

    y  =  conv(own block, torch pads)  +  conv(slabs of received rows) on the outputs at the edges

A convolution is linear: what it makes of a block with halos is what it makes of the block with zeros around it, plus what
it makes of the halos. Nothing is put together; the block itself and the slabs are kept for backward. Messages travel while the
block is convolved, and in backward, which has the gradients of the slabs first, while those of the block are computed:

    forward    post ──► block ──► wait ──► slabs, add            backward    slabs ──► post ──► block ──► wait, add

The slabs cost a few small calls of torch, so small blocks are padded instead (`single`). So are those whose outputs torch
cannot make with equal padding on both sides (even kernels, strides that do not fit), 3-D ones padded in depth, whose weight
gradient torch computes twice as slowly, and half precision, where a sum of two results is rounded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from ..grid import Box, Interval, Slab, Window, slabs_of
from .fetch import Fetch
from .split import Exchange, Homeward, Split

EXACT = (torch.float32, torch.float64)
"""Where a sum of two results is as exact as one."""

Convolve = Callable[[Tensor, Tensor, Tensor | None, tuple[int, ...]], Tensor]
"""The outputs for a tensor, a weight, a bias and the padding that is left to torch."""
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of a block or a box, of the weight and of the bias."""
Differentiate = Callable[[Tensor, Tensor, Tensor, tuple[int, ...], Sequence[bool]], Gradients]
"""Those which are wanted: from the gradient of the outputs, what was convolved, the weight and the padding."""
Range = tuple[int, int, int]
"""A dim, where to begin, and how far to go: what `narrow` takes."""


class Addition:
    """How one worker's outputs come from its own block and from slabs of received rows."""

    def __init__(self, fetch: Fetch, own: Box, padding: tuple[int, ...], slabs: Sequence[Slab]) -> None:
        self.padding = padding
        self.slabs = [(slab.padding, _range(slab.dim, slab.outputs), _range(slab.dim, slab.taps)) for slab in slabs]

        def with_channels(box: Box) -> Box:
            return Box((0, 0, *box.start), (*fetch.shape[:2], *box.stop))

        self.split = Split(
            fetch,
            own,
            [with_channels(slab.sees) for slab in slabs],
            [with_channels(slab.received) for slab in slabs],
        )

    @classmethod
    def planned(cls, fetch: Fetch | None, windows: Sequence[Window] | None, outputs: Box | None) -> Addition | None:
        """For `outputs` that see what is fetched through `windows`; None where the padded block is needed."""
        if fetch is None or windows is None or outputs is None or not outputs.volume or fetch.stays is None:
            return None
        source, target = fetch.stays
        assert fetch.plan.owned is not None
        if source.shape != fetch.plan.owned.shape or fetch.fill:
            return None
        margins = fetch.margins[2:] or ((0, 0),) * len(windows)
        rows = fetch.shape[2:]
        filled = [(before, n - after) for n, (before, after) in zip(rows, margins, strict=True)]
        own = list(zip(target.start[2:], target.stop[2:], strict=True))
        found = slabs_of(windows, outputs.shape[2:], rows, own, filled)
        if found is None or (len(windows) == 3 and found.padding[0]):
            return None
        return cls(fetch, Box.of_shape(source.shape), found.padding, found.slabs)

    def convolved(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, convolve: Convolve
    ) -> tuple[Tensor, list[Tensor]]:
        """The outputs, and the slabs that were received; nothing is recorded."""
        exchange = Exchange(self.split, x, 0.0)
        try:
            y = convolve(x, weight, bias, self.padding)
        finally:  # others wait for what was posted, whatever happens here
            exchange.finish()
        for slab, (padding, edge, taps) in zip(exchange.boxes, self.slabs, strict=True):
            y.narrow(*edge).add_(convolve(slab, weight.narrow(*taps), None, padding))
        return y, exchange.boxes

    def gradients(
        self,
        y: Tensor,
        x: Tensor,
        slabs: Sequence[Tensor],
        weight: Tensor,
        differentiate: Differentiate,
        wanted: Sequence[bool],
    ) -> Gradients:
        """The gradients from that of the outputs; that of the block is complete, and not recorded."""
        parts = list[Gradients]()
        if wanted[0] or wanted[1]:
            for slab, (padding, edge, taps) in zip(slabs, self.slabs, strict=True):
                parts.append(differentiate(y.narrow(*edge), slab, weight.narrow(*taps), padding, (*wanted[:2], False)))
        messages = Homeward(self.split, [cast(Tensor, part[0]) for part in parts], y) if wanted[0] else None
        of_x, of_weight, of_bias = differentiate(y, x, weight, self.padding, wanted)
        if messages is not None:
            messages.finish(cast(Tensor, of_x))
        if of_weight is not None:
            for part, (_, _, taps) in zip(parts, self.slabs, strict=True):
                of_weight.narrow(*taps).add_(cast(Tensor, part[1]))
        return of_x, of_weight, of_bias


def _range(dim: int, interval: Interval) -> Range:
    """Of a tensor whose dims of space come after two others."""
    return dim + 2, interval[0], interval[1] - interval[0]
