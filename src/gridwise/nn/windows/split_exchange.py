"""The operator of layers that compute while messages travel: the own block, and boxes that wait for pieces from others.

    forward   x -> (x, B x)         B puts each box together from pieces of the own block and of others'
    adjoint   (g, b) -> g + B' b    pieces of others go back and are added there, the own ones here
    bytes     what the route sends

Forward returns before anything has arrived: the own block can be used at once, the boxes after
`ForwardMessages.finish`. The messages are those of `Fetch`, in the same order, so workers on this road and on the plain
one understand each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...comm.messages.packing import put
from ...grid import Box, Meeting, meetings
from ..engine.carrier import HALVES, Place
from ..engine.operator import Ticket, anchor_unless, meet, plain, prepare
from .fetch import Fetch, memory_format_of


@dataclass(frozen=True, slots=True)
class BoxPart:
    """A part of a box, as places: there, and in tensor number `piece`."""

    there: Place
    piece: int
    here: Place


class Split:
    """`inside` is the part of the own block to return; `boxes` are in the coordinates of what `fetch` makes."""

    def __init__(self, fetch: Fetch, inside: Box, boxes: Sequence[Box]) -> None:
        assert fetch.plan.owned is not None
        plan, own = fetch.plan, Box.of_shape(fetch.plan.owned.shape)
        margin = tuple(first for first, _ in fetch.margins) or (0,) * len(own.start)
        received = [[piece.target.shifted(margin) for piece in message.pieces] for message in plan.receives]
        mine = [(piece.target.shifted(margin), piece.source) for piece in plan.kept]
        theirs = [(box, Box.of_shape(box.shape)) for line in received for box in line]
        self.fetch, self.inside = fetch, Place(inside, own)
        self.shapes = [box.shape for box in boxes]
        self.strips = [[box.shape for box in line] for line in received]
        self.sent = [[piece.source.shape for piece in message.pieces] for message in plan.sends]
        met = [(box, meetings(box, mine), meetings(box, theirs)) for box in boxes]
        strips = [strip for _, strip in theirs]
        self.kept = [_parts(box, kept, [own] * len(mine)) for box, kept, _ in met]
        self.awaited = [_parts(box, awaited, strips) for box, _, awaited in met]
        uses = Counter(part.piece for parts in self.awaited for part in parts)
        self.in_one_box = {
            part.piece for parts in self.awaited for part in parts if uses[part.piece] == 1 and not part.here.cuts
        }
        """The pieces of others that lie whole in one box, and in no other."""
        self.has_gaps = [sum(part.here.volume for part in (*k, *a)) < box.volume for box, k, a in met]

    def begin(self, x: Tensor, ticket: Ticket, records: bool) -> tuple[Tensor, list[Tensor], ForwardMessages]:
        """The inside of `x`, the boxes, and what fills them; recorded by autograd on all workers if `records`."""
        if not records:
            exchange = ForwardMessages(self, x.detach(), self.fetch.fill)
            return self.inside(x.detach()), exchange.boxes, exchange
        anchor, begun = anchor_unless(x.requires_grad), list[ForwardMessages]()
        inside, *boxes = _Forth.apply(x, anchor, self, ticket, self.fetch.fill, begun)
        return inside, boxes, begun[0]

    def back(self, inside: Tensor, boxes: Sequence[Tensor], own: bool) -> Tensor:
        """The adjoint; adds in place if `inside` is the caller's `own`."""
        fetch, dtype = self.fetch, inside.dtype
        assert fetch.plan.owned is not None
        total = torch.float32 if dtype in HALVES else dtype
        if self.inside.cuts:
            x = torch.zeros(fetch.plan.owned.shape, dtype=total, device=inside.device)
            self.inside(x).copy_(inside)
        else:
            x = inside if own and total == dtype and 0 not in inside.stride() else inside.to(total, copy=True)
        AdjointMessages(self, boxes, inside).finish(x)
        return x.to(dtype)

    def meet(self, ctx: Any, ticket: Ticket) -> None:
        """As for every operator that backward applies."""
        name = f"the adjoint of {self.fetch.name}" if ticket.depth % 2 else self.fetch.name
        meet(ctx, self.fetch.transport, self.fetch.team, name, ticket)


def _parts(box: Box, met: Sequence[Meeting], tensors: Sequence[Box]) -> list[BoxPart]:
    whole = Box.of_shape(box.shape)
    return [BoxPart(Place(each.there, whole), each.piece, Place(each.here, tensors[each.piece])) for each in met]


class ForwardMessages:
    """The messages of one call, under way, and the boxes that they fill."""

    def __init__(self, split: Split, x: Tensor, fill: float) -> None:
        self.split, fetch = split, split.fetch
        x = plain(x)
        channel = fetch.traffic.loaded(x)
        if channel is not None:
            self.strips, self.pending = channel.incoming, channel.begin()
        else:
            strips = [[x.new_empty(shape) for shape in line] for line in split.strips]
            self.strips = [strip for line in strips for strip in line]
            self.pending = fetch.transport.move_meanwhile(
                [(peer, [place(x) for place in places]) for peer, places in fetch.sends],
                [(peer, line) for (peer, _), line in zip(fetch.receives, strips, strict=True)],
                x.dtype,
                fetch.name,
            )
        form = memory_format_of(x)
        self.boxes = [torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form) for shape in split.shapes]
        for box, kept, has_gaps in zip(self.boxes, split.kept, split.has_gaps, strict=True):
            if has_gaps:
                box.fill_(fill)
            for part in kept:
                put(part.there(box), part.here(x), add=False)

    def finish(self) -> None:
        """Wait for what is on its way, and bring it to its places."""
        self.pending.wait()
        for box, awaited in zip(self.boxes, self.split.awaited, strict=True):
            for part in awaited:
                put(part.there(box.detach()), part.here(self.strips[part.piece]), add=False)


class AdjointMessages:
    """The messages of one adjoint, under way: gradients of others' pieces to their owners, and those of the own pieces here.

    `like` has the dtype and the device of the gradients.
    """

    def __init__(self, split: Split, boxes: Sequence[Tensor], like: Tensor) -> None:
        self.split, self.boxes, fetch = split, boxes, split.fetch
        back = fetch.adjoint.traffic
        channel = back.channel(like)
        if channel is not None:
            self._collect(boxes, channel.outgoing)
            self.landed, self.pending = channel.incoming, channel.begin()
            return
        strips = [[like.new_empty(shape) for shape in line] for line in split.strips]
        self._collect(boxes, [strip for line in strips for strip in line])
        landed = [[like.new_empty(shape) for shape in line] for line in split.sent]
        self.landed = [piece for line in landed for piece in line]
        self.pending = fetch.transport.move_meanwhile(
            [(peer, line) for (peer, _), line in zip(fetch.receives, strips, strict=True)],
            [(peer, line) for (peer, _), line in zip(fetch.sends, landed, strict=True)],
            like.dtype,
            back.what,
        )

    def _collect(self, boxes: Sequence[Tensor], strips: Sequence[Tensor]) -> None:
        """The gradients of others' pieces, from those of the boxes that they are part of."""
        for i, strip in enumerate(strips):
            if i not in self.split.in_one_box:
                strip.zero_()
        for box, awaited in zip(boxes, self.split.awaited, strict=True):
            for part in awaited:
                put(part.here(strips[part.piece]), part.there(box), add=part.piece not in self.split.in_one_box)

    def finish(self, x: Tensor) -> None:
        """Wait for what is on its way, and add it, and what stays, to the gradient of the own block."""
        for box, kept in zip(self.boxes, self.split.kept, strict=True):
            for part in kept:
                put(part.here(x), part.there(box), add=True)
        self.pending.wait()
        for place, piece in zip(self.split.fetch.traffic.leaving, self.landed, strict=True):
            put(place(x), piece, add=True)


class _Forth(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor | None,
        split: Split,
        ticket: Ticket,
        fill: float,
        begun: list[ForwardMessages],
    ) -> tuple[Tensor, ...]:
        ctx.split, ctx.ticket = split, ticket
        prepare(ctx)
        exchange = ForwardMessages(split, x, fill)
        begun.append(exchange)
        return (split.inside(x), *exchange.boxes)

    @staticmethod
    def backward(ctx: Any, inside: Tensor, *boxes: Tensor) -> tuple[Tensor | None, ...]:
        ticket = ctx.ticket.differentiated()
        ctx.split.meet(ctx, ticket)
        if not torch.is_grad_enabled():
            return ctx.split.back(inside, boxes, own=True), None, None, None, None, None
        anchor = anchor_unless(any(part.requires_grad for part in (inside, *boxes)))
        return Back.apply(anchor, ctx.split, ticket, inside, *boxes), None, None, None, None, None


class Back(torch.autograd.Function):
    """The adjoint, recorded."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor | None, split: Split, ticket: Ticket, inside: Tensor, *boxes: Tensor
    ) -> Tensor:
        ctx.split, ctx.ticket = split, ticket
        prepare(ctx)
        return split.back(inside, boxes, own=False)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> tuple[Tensor | None, ...]:
        ticket = ctx.ticket.differentiated()
        ctx.split.meet(ctx, ticket)
        if torch.is_grad_enabled():
            anchor, begun = anchor_unless(x.requires_grad), list[ForwardMessages]()
            parts = _Forth.apply(x, anchor, ctx.split, ticket, 0.0, begun)
            begun[0].finish()
        else:
            exchange = ForwardMessages(ctx.split, x, 0.0)
            exchange.finish()
            parts = (ctx.split.inside(x), *exchange.boxes)
        return None, None, None, *parts
