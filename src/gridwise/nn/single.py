"""A small convolution as a single node of autograd: what it fetches, convolves, sends home and sums, in one place.

    forward    fetch ──► convolve
    backward   agree ──► gradients, by torch ──► those of halos go home ──► those of weight and bias summed in one message

A large convolution is made of nodes for each of these steps (`fetch`, torch's own, `parameter`), of which some agree with
the other workers and each costs tens of microseconds: nothing beside its work, and more than that of a small one. Gradients
of gradients are made of those steps here, too.

All workers of a layer take this road, or none does: that follows from what they have agreed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from ..comm.transport import Team, Transport
from ..grid import Layout, Shape
from .fetch import Fetch
from .operator import Ticket, anchor_unless, apply, meet, plain, prepare
from .parameter import Shared

LARGE = 1 << 20
"""The largest block, in bytes, of which one node is made."""

Sums = Sequence[tuple[Shared, int] | None]
"""How the gradients of weight and bias are summed, with a key; None where they are not, or somebody else does it."""
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of the box or block, of the weight and of the bias."""


def is_small(source: Layout, dtype: torch.dtype, outputs: Shape) -> bool:
    """Whether all blocks are small, of real numbers, and every worker has outputs."""
    extents = [max(stop - start for start, stop in pairwise(cuts)) for cuts in source.cuts]
    filled = all(n >= p for n, p in zip(outputs, source.grid.shape, strict=True))
    return filled and dtype.is_floating_point and prod(extents) * dtype.itemsize <= LARGE


@dataclass(frozen=True)
class Single:
    """A worker's part in a small convolution."""

    transport: Transport
    team: Team
    name: str
    fetch: Fetch | None
    """None where every worker needs just what it has."""
    convolve: Callable[..., Tensor]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """What torch pads."""
    dilation: tuple[int, ...]
    groups: int

    @cached_property
    def adjoint_name(self) -> str:
        return f"the adjoint of {self.name}"

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, sums: Sums, ticket: Ticket, wants_x: bool
    ) -> Tensor:
        """The outputs; `wants_x` says whether any worker needs the gradient of its block."""
        wanted = (wants_x, weight.requires_grad, bias is not None and bias.requires_grad)
        if not torch.is_grad_enabled() or True not in wanted:
            return self.convolved(self.box_of(x.detach()), weight, bias)
        call = _Call(self, sums, ticket, wanted)
        return _Convolved.apply(x, weight, bias, anchor_unless(x.requires_grad or wanted[1] or wanted[2]), call)

    def box_of(self, x: Tensor) -> Tensor:
        return x if self.fetch is None else self.fetch(plain(x))

    def convolved(self, box: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.convolve(box, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def gradients(self, y: Tensor, box: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Gradients:
        """Those which are wanted, from that of the outputs."""
        sizes, room = (weight.shape[0],), (0,) * len(self.stride)
        where = self.stride, self.padding, self.dilation, False, room, self.groups
        return cast(Gradients, torch.ops.aten.convolution_backward.default(y, box, weight, sizes, *where, wanted))


class _Call:
    """One call of a small convolution, for its backward."""

    def __init__(self, single: Single, sums: Sums, ticket: Ticket, wanted: tuple[bool, bool, bool]) -> None:
        self.single, self.wanted = single, wanted
        self.ticket = Ticket(ticket.key + 2, ticket.call, ticket.depth)  # a worker on another road would be noticed
        self.fetch = single.fetch if wanted[0] else None
        self.sums = [each if needed else None for each, needed in zip(sums, wanted[1:], strict=True)]
        self.team = single.team if self.fetch or any(self.sums) else (single.transport.rank,)
        """Who meets in backward: nobody else where nothing is sent."""

    def homeward(self, gradients: Gradients) -> Gradients:
        """The gradient of the block from that of the box, and complete ones of the parameters; nothing is recorded."""
        of_box, of_weight, of_bias = gradients
        if self.fetch is not None:
            assert of_box is not None
            of_box = self.fetch.adjoint(of_box)
        first, second = self.sums
        if first is not None and second is not None and first[0].team == second[0].team:
            assert of_weight is not None
            assert of_bias is not None
            both = first[0].adjoint(torch.cat((of_weight.reshape(-1), of_bias)))
            total, of_bias = torch.split_with_sizes(both, (of_weight.numel(), of_bias.numel()))
            return of_box, total.view(of_weight.shape), of_bias
        if first is not None:
            of_weight = first[0].adjoint(cast(Tensor, of_weight))
        if second is not None:
            of_bias = second[0].adjoint(cast(Tensor, of_bias))
        return of_box, of_weight, of_bias

    def recorded(self, y: Tensor, x: Tensor, box: Tensor, weight: Tensor, depth: int) -> Gradients:
        """The gradients, from that of the outputs, by nodes that can be differentiated again."""
        key, call, _ = self.ticket
        if self.fetch is not None:  # again: this box knows where it comes from
            box = apply(x, self.fetch, Ticket(key + 1, call, depth), True)
        if self.sums[0] is not None:  # likewise: its gradient is a sum
            operator, own = self.sums[0]
            weight = apply(weight, operator, Ticket(own + 1, call, depth), True)
        of_box, *parts = self.single.gradients(y, box, weight, self.wanted)
        if self.fetch is not None:
            of_box = apply(cast(Tensor, of_box), self.fetch.adjoint, Ticket(key, call, depth), True)
        for i, each in enumerate(self.sums):
            if each is not None:
                operator, own = each
                parts[i] = apply(cast(Tensor, parts[i]), operator.adjoint, Ticket(own, call, depth), True)
        return of_box, parts[0], parts[1]


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor | None, call: _Call) -> Tensor:
        ctx.call = call
        box = call.single.box_of(x)
        prepare(ctx, x, box, weight)
        return call.single.convolved(box, weight, bias)

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        single, ticket = call.single, call.ticket.differentiated()
        x, box, weight = meet(ctx, single.transport, call.team, single.adjoint_name, ticket)
        if torch.is_grad_enabled():
            return *call.recorded(y, x, box, weight, ticket.depth), None, None
        return *call.homeward(single.gradients(y, box, weight, call.wanted)), None, None
