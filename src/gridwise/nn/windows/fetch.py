"""The operator of windowed layers: fetch the box that a worker needs, with margins around it, in one copy.

    forward   y = E A x      A moves pieces to the needed box (`carrier`); E embeds it into a larger one, with
              filled margins
    adjoint   x = A' E' y    the margins are dropped, the rest goes back and is added
    bytes     what the route sends; the margins cost nothing

Padding after the movement would copy the whole block a second time. Here messages and the worker's block go directly
into the padded tensor. A worker that needs exactly what it owns, without margins, gets its own tensor and no copy. A small
box whose rows lie one after another along one dim is concatenated: half as many calls of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ...comm.messages.packing import put
from ...comm.transports.base import Team, Transport
from ...grid import OWN, Box, Route, Stacking, stacking_of
from ...operators.formats import HALVES, memory_format_of
from ..engine.carrier import BoxView, Margins, Move, MoveBack

LARGE = 1 << 20
"""The size in bytes from which a worker's block is copied while messages are in flight."""


class Fetch(Move):
    """Move along a route into a box with `margins`, filled with `fill` (which is not part of the linear map).

    `fresh_gradients` promises that the result goes to a torch function which makes a new gradient for it, used by
    nothing else: the adjoint then adds in place and returns a view, without a copy of the block.
    """

    def __init__(
        self,
        transport: Transport,
        team: Team,
        name: str,
        plan: Route,
        nothing: Callable[[Tensor], Tensor],
        margins: Margins = (),
        fill: float = 0.0,
        fresh_gradients: bool = False,
    ) -> None:
        self.margins = margins if plan.needed is not None and any(map(any, margins)) else ()
        super().__init__(transport, team, name, plan, nothing, self.margins)
        self.fresh_gradients = fresh_gradients
        self.fill = fill
        self.edges = _edges(self.shape, self.margins)
        self.received = sum(message.volume for message in plan.receives)
        stacking = Stacking(0, (OWN,)) if plan.owned is not None and plan.owned == plan.needed else stacking_of(plan)
        others = (margin for d, margin in enumerate(self.margins) if stacking is None or d != stacking.dim)
        self.stacking = None if any(map(any, others)) else stacking

    @cached_property
    def adjoint(self) -> FetchBack:
        return FetchBack(self)

    @property
    def linear_part(self) -> Fetch:
        if not self.fill:
            return self
        return Fetch(self.transport, self.team, self.name, self.plan, self.nothing, self.margins)

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_identity:
            return x
        if self.stacking is not None and x.nbytes < LARGE and x.is_contiguous():
            return self._concatenated(x, self.stacking)
        y = self.nothing(x) if self.plan.needed is None else self.room_for(x)
        self.traffic.carry(x, y, self.kept, add=False)
        return y

    def _concatenated(self, x: Tensor, stacking: Stacking) -> Tensor:
        received, d = [x.new_empty(view.shape) for view in self.traffic.arriving], stacking.dim
        self.traffic.swap(x, received).wait()
        parts = [x if i == OWN else received[i] for i in stacking.order]
        if self.margins:
            before, after = (
                [x.new_full((*self.shape[:d], n, *self.shape[d + 1 :]), self.fill)] if n else []
                for n in self.margins[d]
            )
            parts = [*before, *parts, *after]
        return torch.cat(parts, d) if len(parts) > 1 else x

    def room_for(self, x: Tensor) -> Tensor:
        """A new box with its margins filled."""
        y = torch.empty(self.shape, dtype=x.dtype, device=x.device, memory_format=memory_format_of(x))
        for edge in self.edges:
            edge(y).fill_(self.fill)
        return y

    def received_pieces(self, y: Tensor) -> list[Tensor]:
        """Copies of the pieces of a fetched box that came from peers."""
        return [view(y).clone() for view in self.traffic.arriving]

    def bytes_freed(self, y: Tensor) -> int:
        """How many bytes are freed if a fetched box is kept as received pieces, and assembled again from them."""
        return y.nbytes - self.received * y.element_size()

    def put_together(self, x: Tensor, received: Sequence[Tensor]) -> Tensor:
        """The fetched box, assembled again from this worker's block and `received_pieces`; nothing is sent."""
        y = self.room_for(x)
        for source, target in self.kept:
            put(target(y), source(x), add=False)
        for view, piece in zip(self.traffic.arriving, received, strict=True):
            put(view(y), piece, add=False)
        return y


class FetchBack(MoveBack):
    """The adjoint of `Fetch`."""

    forth: Fetch

    @property
    def adjoint(self) -> Fetch:
        return self.forth.linear_part

    def __call__(self, y: Tensor) -> Tensor:
        if self.forth.is_identity:
            return y
        forth = self.forth
        if not (forth.fresh_gradients and forth.keeps_all) or y.dtype in HALVES or 0 in y.stride():
            return super().__call__(y)
        x = forth.kept[0][1](y)  # this worker's part of the gradient, in its place: what arrives is added there
        self.traffic.carry(y, x, (), add=True)
        return x


def _edges(shape: Sequence[int], margins: Margins) -> list[BoxView]:
    """The margins of a tensor as disjoint slabs: dim by dim, each inside the margins of the dims before."""
    slabs, whole = [], Box.of_shape(tuple(shape))
    start, stop = list(whole.start), list(whole.stop)
    for d, (before, after) in enumerate(margins):
        first, last = before, shape[d] - after
        for a, b in ((0, first), (last, shape[d])):
            if a < b:
                slabs.append(BoxView(Box((*start[:d], a, *start[d + 1 :]), (*stop[:d], b, *stop[d + 1 :])), whole))
        start[d], stop[d] = first, last
    return slabs
