"""Convolutions of large blocks without a padded copy: the own block first, then what the rows of others add to it.

    y  =  conv(own block, torch pads)  +  conv(slabs of received rows) on the outputs at the edges

A convolution is linear: what it makes of a block with halos is what it makes of the block with zeros around it, plus what
it makes of the halos. Nothing is put together; the block itself and the slabs are kept for backward. Messages travel while the
block is convolved, and in backward, which has the gradients of the slabs first, while those of the block are computed:

    forward    post ──► block ──► wait ──► slabs, add            backward    slabs ──► post ──► block ──► wait, add

The slabs cost a few small calls of torch, so small blocks are padded instead (`LEAST`). So are those whose outputs torch
cannot make with equal padding on both sides (even kernels, strides that do not fit), 3-D ones padded in depth, whose weight
gradient torch computes twice as slowly, and half precision, where a sum of two results is rounded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Slab, Window, slabs_of
from .autocast import autocasts
from .fetch import Fetch
from .operator import Ticket, anchor_unless, prepare
from .seen import Call, Seen
from .split import Back, Exchange, Homeward, Split

LEAST = 1 << 20
"""Bytes of a block from which adding is faster than padding."""


def is_worth_adding(x: Tensor, small_too: bool) -> bool:
    """Whether adding is as exact as padding for this block, and faster or asked for small ones too."""
    return (small_too or x.nbytes >= LEAST) and x.dtype in (torch.float32, torch.float64) and not autocasts()


class Addition:
    """How one worker's outputs come from its own block and from slabs of received rows."""

    def __init__(self, fetch: Fetch, own: Box, padding: tuple[int, ...], slabs: Sequence[Slab]) -> None:
        self.padding = padding
        self.slab_paddings = [slab.padding for slab in slabs]
        self.places = [(slab.dim + 2, *slab.outputs) for slab in slabs]

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

    def begin(self, x: Tensor, ticket: Ticket, records: bool) -> Added:
        """Post the messages; recorded by autograd on all workers if `records`."""
        if not records or not self.places:  # without slabs nothing of backward can go first
            own, slabs, exchange = self.split.begin(x, ticket, records)
            return Added(self, own, exchange, lambda: slabs)
        exchange, call = Exchange(self.split, x.detach(), 0.0), _Call(self.split, ticket)
        anchor = anchor_unless(x.requires_grad)
        own = _Own.apply(x, anchor, call)
        return Added(self, own, exchange, lambda: _Slabs.apply(x, anchor, call, exchange.boxes))


class Added(Seen):
    """The own block, and slabs that are still on their way."""

    def __init__(
        self, addition: Addition, own: Tensor, exchange: Exchange, slabs: Callable[[], Sequence[Tensor]]
    ) -> None:
        super().__init__(own)
        self.addition, self.exchange, self.slabs = addition, exchange, slabs

    def computed(self, call: Call, padding: tuple[int, ...] = (), linear: Call | None = None) -> Tensor:
        assert linear is not None
        try:
            y = call(self.x, self.addition.padding)
        finally:  # others wait for what was posted, whatever happens here
            self.exchange.finish()
        places, paddings = self.addition.places, self.addition.slab_paddings
        if not places:
            return y
        parts = [linear(slab, padding) for slab, padding in zip(self.slabs(), paddings, strict=True)]
        return _AddAtEdges.apply(y, places, *parts)


@dataclass
class _Call:
    """What the two nodes of a call share: in backward, the messages that the second has posted for the first."""

    split: Split
    ticket: Ticket
    under_way: Homeward | None = None


class _Own(torch.autograd.Function):
    """The own block. Its gradient waits for what others add to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor | None, call: _Call) -> Tensor:
        ctx.call = call
        return call.split.inside(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # the other node has given its part, recorded
            return gradient, None, None
        messages, ctx.call.under_way = ctx.call.under_way, None
        if messages is None:
            raise RuntimeError("gridwise: a convolution's block came before its slabs in backward; please report this.")
        x = gradient.clone() if 0 in gradient.stride() else gradient  # the convolution's own
        messages.finish(x)
        return x, None, None


class _Slabs(torch.autograd.Function):
    """The slabs. Autograd runs later nodes first: this one is made after the block is convolved, to send before that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor | None, call: _Call, slabs: list[Tensor]) -> tuple[Tensor, ...]:
        ctx.call, ctx.shape = call, x.shape
        prepare(ctx)
        return tuple(slabs)

    @staticmethod
    def backward(ctx: Any, *slabs: Tensor) -> tuple[Tensor | None, None, None, None]:
        call, ticket = ctx.call, ctx.call.ticket.differentiated()
        call.under_way = None  # of a backward that failed
        call.split.meet(ctx, ticket)
        if not torch.is_grad_enabled():
            call.under_way = Homeward(call.split, slabs, slabs[0])
            return None, None, None, None
        anchor = anchor_unless(any(slab.requires_grad for slab in slabs))
        nothing = slabs[0].new_zeros(()).expand(ctx.shape)
        return Back.apply(anchor, call.split, ticket, nothing, *slabs), None, None, None


class _AddAtEdges(torch.autograd.Function):
    """y, in place, plus each part on some outputs of one dim: dim, first and last."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, places: list[tuple[int, int, int]], *parts: Tensor) -> Tensor:
        ctx.places = places
        for part, (d, first, last) in zip(parts, places, strict=True):
            y.narrow(d, first, last - first).add_(part)
        ctx.mark_dirty(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        edges = [gradient.narrow(d, first, last - first) for d, first, last in ctx.places]
        return gradient, None, *edges
