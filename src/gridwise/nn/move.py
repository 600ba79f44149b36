"""The operator behind every movement of blocks: carry out one worker's part of a route.

    forward  y = A x     each worker gets the box it needs, copied piece by piece from the blocks of its owners
    adjoint  x = A' y    the same pieces go back, and what arrives at one place is added
    bytes    what the route sends, once; one message per peer

The result is made without filling it first. A message of one piece whose memory is contiguous is sent from, or received
into, its place; any other goes through one packed buffer. Local pieces are copied while messages are on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..comm.transport import Team, Transport
from ..grid import Box, Route
from .operator import Operator

HALVES = (torch.float16, torch.bfloat16)

Boxed = tuple[int, tuple[Box, ...]]
"""A peer and the boxes of the local tensor that make up its message."""


class Move(Operator):
    """Copy from blocks to needs along a route.

    `nothing` makes what a worker without a result returns for its input, a zero-volume tensor.
    """

    def __init__(
        self, transport: Transport, team: Team, name: str, plan: Route, nothing: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(transport, team, name)
        self.plan = plan
        self.nothing = nothing
        self.sends: list[Boxed] = [(m.peer, tuple(p.source for p in m.pieces)) for m in plan.sends]
        self.receives: list[Boxed] = [(m.peer, tuple(p.target for p in m.pieces)) for m in plan.receives]
        self.kept = [(p.source, p.target) for p in plan.kept]

    @property
    def adjoint(self) -> MoveBack:
        return MoveBack(self)

    def __call__(self, x: Tensor) -> Tensor:
        if self.plan.is_identity:
            return x.clone(memory_format=torch.contiguous_format)
        if self.plan.needed is None:
            y = self.nothing(x)
        else:
            y = torch.empty(self.plan.needed.shape, dtype=x.dtype, device=x.device)
        _carry(self.transport, self.name, x, y, self.sends, self.receives, self.kept, add=False)
        return y


class MoveBack(Operator):
    """The adjoint of `Move`: send the pieces back and add."""

    def __init__(self, forth: Move) -> None:
        super().__init__(forth.transport, forth.team, f"the adjoint of {forth.name}")
        self.forth = forth

    @property
    def adjoint(self) -> Move:
        return self.forth

    def __call__(self, y: Tensor) -> Tensor:
        plan, forth = self.forth.plan, self.forth
        if plan.is_identity:
            return y.clone(memory_format=torch.contiguous_format)
        kept = [(target, source) for source, target in forth.kept]
        if plan.owned is None:
            x = forth.nothing(y)
        elif plan.exact:
            x = torch.empty(plan.owned.shape, dtype=y.dtype, device=y.device)
        else:
            total = torch.float32 if y.dtype in HALVES else y.dtype
            x = torch.empty(plan.owned.shape, dtype=total, device=y.device)
            if len(kept) == 1 and kept[0][1].shape == plan.owned.shape:
                x.copy_(y[kept.pop()[0].slices])
            else:
                x.zero_()
        _carry(self.transport, self.name, y, x, forth.receives, forth.sends, kept, add=not plan.exact)
        return x if x.dtype == y.dtype else x.to(y.dtype)


def _carry(
    transport: Transport,
    what: str,
    x: Tensor,
    y: Tensor,
    sends: Sequence[Boxed],
    receives: Sequence[Boxed],
    kept: Sequence[tuple[Box, Box]],
    add: bool,
) -> None:
    """Send boxes of `x`; copy or add what arrives, and what is kept, into boxes of `y`."""
    put = Tensor.add_ if add else Tensor.copy_
    landings = [_landing(y, boxes, x.dtype, in_place=not add) for _, boxes in receives]
    pending = transport.post(
        [(peer, _packed(x, boxes)) for peer, boxes in sends],
        [(peer, buffer) for (peer, _), (buffer, _) in zip(receives, landings, strict=True)],
        what,
    )
    for source, target in kept:
        put(y[target.slices], x[source.slices])
    pending.wait()
    for (_, boxes), (buffer, landed) in zip(receives, landings, strict=True):
        if not landed:
            for box, part in zip(boxes, _parts(buffer, boxes), strict=True):
                put(y[box.slices], part)


def _packed(x: Tensor, boxes: Sequence[Box]) -> Tensor:
    """The boxes of `x` one after the other in contiguous memory: x's own, where one box lies there already."""
    if len(boxes) == 1:
        return x[boxes[0].slices].contiguous()
    buffer = torch.empty(sum(box.volume for box in boxes), dtype=x.dtype, device=x.device)
    for box, part in zip(boxes, _parts(buffer, boxes), strict=True):
        part.copy_(x[box.slices])
    return buffer


def _landing(y: Tensor, boxes: Sequence[Box], dtype: torch.dtype, in_place: bool) -> tuple[Tensor, bool]:
    """Where a message is received, and whether that is its place in `y` already."""
    if in_place and len(boxes) == 1:
        place = y[boxes[0].slices]
        if place.is_contiguous():
            return place, True
    return torch.empty(sum(box.volume for box in boxes), dtype=dtype, device=y.device), False


def _parts(buffer: Tensor, boxes: Sequence[Box]) -> list[Tensor]:
    """The boxes' shares of a packed buffer, each in its box's shape."""
    if len(boxes) == 1:
        return [buffer.view(boxes[0].shape)]
    return [part.view(box.shape) for part, box in zip(buffer.split([b.volume for b in boxes]), boxes, strict=True)]
