"""The operator behind every movement of blocks: carry out one worker's part of a route.

    forward  y = A x     each worker gets the box it needs, copied piece by piece from the blocks of their owners
    adjoint  x = A' y    the same pieces go back, and those that arrive in one box are added
    bytes    what the route sends, once; one message per peer

The result is allocated uninitialised, and local pieces are copied while messages are in flight; the transport packs the
pieces (`comm.messages.packing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from ...comm.messages.packing import put
from ...comm.messages.requests import Request
from ...comm.transports.base import Team, Transport
from ...grid import Box, Piece, Route
from ...operators.formats import HALVES
from .operator import Operator

NOWHERE = Box((), ())


class BoxView:
    """A box of a tensor of known shape, as the fewest `narrow` calls: cheaper than slicing every dim."""

    __slots__ = ("cuts", "shape")

    def __init__(self, box: Box, within: Box) -> None:
        self.shape = box.shape
        full = enumerate(zip(box.start, box.shape, within.shape, strict=True))
        self.cuts = [(d, start, length) for d, (start, length, extent) in full if length != extent]

    def __call__(self, x: Tensor) -> Tensor:
        for d, start, length in self.cuts:
            x = x.narrow(d, start, length)
        return x


Margins = tuple[tuple[int, int], ...]
"""Per dim, how many rows before and after."""
PeerViews = tuple[int, list[BoxView]]
"""A peer and the boxes of the local tensor that make up its message."""


class Traffic:
    """The messages of a movement, from boxes of one tensor to boxes of another; reused by every call."""

    def __init__(
        self, transport: Transport, what: str, sends: Sequence[PeerViews], receives: Sequence[PeerViews]
    ) -> None:
        self.transport, self.what, self.sends, self.receives = transport, what, sends, receives
        self.arriving = [view for _, views in receives for view in views]

    def carry(self, x: Tensor, y: Tensor, kept: Sequence[tuple[BoxView, BoxView]], add: bool) -> None:
        """Send boxes of `x`; copy or add what arrives, and what is kept, into boxes of `y`."""
        self.carry_together([x], [y], kept, add)

    def swap(self, x: Tensor, received: Sequence[Tensor]) -> Request:
        """Send boxes of `x` and receive into tensors of the shapes of `arriving`."""
        into = iter(received)
        return self.transport.move(
            [(peer, [view(x) for view in views]) for peer, views in self.sends],
            [(peer, [next(into) for _ in views]) for peer, views in self.receives],
            x.dtype,
            self.what,
        )

    def carry_together(
        self, sources: Sequence[Tensor], targets: Sequence[Tensor], kept: Sequence[tuple[BoxView, BoxView]], add: bool
    ) -> None:
        """The same for several tensors of one dtype: all that goes to a peer is one message."""
        pending = self.transport.move(
            [(peer, [view(x) for x in sources for view in views]) for peer, views in self.sends],
            [(peer, [view(y) for y in targets for view in views]) for peer, views in self.receives],
            sources[0].dtype,
            self.what,
            add,
        )
        try:
            for x, y in zip(sources, targets, strict=True):
                for source, target in kept:
                    put(target(y), source(x), add)
        finally:  # even after an error: peers still write to the memory of these messages
            pending.wait()


class Move(Operator):
    """Copy from blocks to needs along a route.

    `nothing` makes the zero-volume tensor that a worker without a result returns for its input. The result has
    `margins` around the needed box, left uninitialised.
    """

    def __init__(
        self,
        transport: Transport,
        team: Team,
        name: str,
        plan: Route,
        nothing: Callable[[Tensor], Tensor],
        margins: Margins = (),
    ) -> None:
        super().__init__(transport, team, name)
        self.plan = plan
        self.nothing = nothing
        own, need = plan.owned or NOWHERE, plan.needed or NOWHERE
        margins = margins or ((0, 0),) * len(need.shape)
        self.shape = tuple(n + before + after for n, (before, after) in zip(need.shape, margins, strict=True))
        self.is_identity = plan.is_identity and not any(map(any, margins))
        room, shift = Box.of_shape(self.shape), tuple(before for before, _ in margins)

        def target(piece: Piece) -> BoxView:
            return BoxView(piece.target.shifted(shift), room)

        self.sends: list[PeerViews] = [(m.peer, [BoxView(p.source, own) for p in m.pieces]) for m in plan.sends]
        self.receives: list[PeerViews] = [(m.peer, [target(p) for p in m.pieces]) for m in plan.receives]
        self.kept = [(BoxView(p.source, own), target(p)) for p in plan.kept]
        self.keeps_all = len(plan.kept) == 1 and plan.kept[0].source.shape == own.shape
        self.traffic = Traffic(transport, name, self.sends, self.receives)

    @property
    def incoming(self) -> int:
        """How many elements come from other workers."""
        return sum(prod(view.shape) for _, views in self.receives for view in views)

    @cached_property
    def adjoint(self) -> MoveBack:
        return MoveBack(self)

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_identity:
            return x.clone(memory_format=torch.contiguous_format)
        if self.plan.needed is None:
            y = self.nothing(x)
        else:
            y = torch.empty(self.shape, dtype=x.dtype, device=x.device)
        self.traffic.carry(x, y, self.kept, add=False)
        return y


class MoveBack(Operator):
    """The adjoint of `Move`: send the pieces back and add."""

    def __init__(self, forth: Move) -> None:
        super().__init__(forth.transport, forth.team, f"the adjoint of {forth.name}")
        self.forth = forth
        self.traffic = Traffic(forth.transport, self.name, forth.receives, forth.sends)

    @property
    def adjoint(self) -> Move:
        return self.forth

    def __call__(self, y: Tensor) -> Tensor:
        plan, forth = self.forth.plan, self.forth
        if forth.is_identity:
            return y.clone(memory_format=torch.contiguous_format)
        kept = [(target, source) for source, target in forth.kept]
        if plan.owned is None:
            x = forth.nothing(y)
        elif plan.exact:
            x = torch.empty(plan.owned.shape, dtype=y.dtype, device=y.device)
        else:
            total = torch.float32 if y.dtype in HALVES else y.dtype
            x = torch.empty(plan.owned.shape, dtype=total, device=y.device)
            if forth.keeps_all:
                x.copy_(kept.pop()[0](y))
            else:
                x.zero_()
        self.traffic.carry(y, x, kept, add=not plan.exact)
        return x if x.dtype == y.dtype else x.to(y.dtype)
