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

from ..grid import Box, Slab, Window, slabs_of
from .fetch import Fetch
from .split import Exchange, Homeward, Split

EXACT = (torch.float32, torch.float64)
"""Where a sum of two results is as exact as one."""

Convolve = Callable[[Tensor, Tensor | None, tuple[int, ...]], Tensor]
"""The outputs for a tensor, a bias and the padding that is left to torch."""
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of a block or a box, of the weight and of the bias."""
Differentiate = Callable[[Tensor, Tensor, tuple[int, ...], Sequence[bool]], Gradients]
"""Those which are wanted: from the gradient of the outputs, what was convolved, and the padding."""


class Addition:
    """How one worker's outputs come from its own block and from slabs of received rows."""

    def __init__(self, fetch: Fetch, own: Box, padding: tuple[int, ...], slabs: Sequence[Slab]) -> None:
        self.padding = padding
        self.slab_paddings = [slab.padding for slab in slabs]
        self.edges = [(slab.dim + 2, slab.outputs[0], slab.outputs[1] - slab.outputs[0]) for slab in slabs]

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

    def convolved(self, x: Tensor, convolve: Convolve, bias: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """The outputs, and the slabs that were received; nothing is recorded."""
        exchange = Exchange(self.split, x, 0.0)
        try:
            y = convolve(x, bias, self.padding)
        finally:  # others wait for what was posted, whatever happens here
            exchange.finish()
        for slab, padding, edge in zip(exchange.boxes, self.slab_paddings, self.edges, strict=True):
            y.narrow(*edge).add_(convolve(slab, None, padding))
        return y, exchange.boxes

    def gradients(
        self, y: Tensor, x: Tensor, slabs: Sequence[Tensor], differentiate: Differentiate, wanted: Sequence[bool]
    ) -> Gradients:
        """The gradients from that of the outputs; that of the block is complete, and not recorded."""
        of_slabs, parts = (wanted[0], wanted[1], False), list[Gradients]()
        if any(of_slabs):
            for slab, padding, edge in zip(slabs, self.slab_paddings, self.edges, strict=True):
                parts.append(differentiate(y.narrow(*edge), slab, padding, of_slabs))
        messages = Homeward(self.split, [cast(Tensor, part[0]) for part in parts], y) if wanted[0] else None
        of_x, of_weight, of_bias = differentiate(y, x, self.padding, wanted)
        if messages is not None:
            messages.finish(cast(Tensor, of_x))
        if of_weight is not None:
            for part in parts:
                of_weight = of_weight.add_(cast(Tensor, part[1]))
        return of_x, of_weight, of_bias
