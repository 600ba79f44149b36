"""A convolution as a single autograd node: movements, torch's kernels and the sums of gradients in one place.

    forward    fetch ──► convolve
    backward   agree ──► gradients, by torch ──► those of halos go home ──► those of weight and bias are summed in
               one message

A node for each of these steps (`fetch`, torch's own, `blocks`) would cost tens of microseconds, and some an agreement
with the other workers. Convolutions that take several calls of torch, or torch's own padding, do consist of such nodes,
and so do gradients of gradients.

For backward the node keeps the worker's block, and of a small box the box itself; of a large one it keeps the received
pieces, and assembles it again. A large block on a device is not copied into a box at all (`border_conv`).

Either all workers of a layer use this node or none does: that follows from what they have agreed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Layout, Shape
from ..engine.autocast import autocasts
from ..engine.operator import CallId, anchor_unless, apply, meet, plain, prepare
from ..parameters.blocks import ReplicatedBlock
from . import saved_input
from .border_conv import BorderConv
from .fetch import Fetch

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""The gradients of a box, of the weight and of the bias."""
Sums = Sequence[tuple[ReplicatedBlock, int] | None]
"""How the gradients of weight and bias are summed, with a key; None where they are not, or are summed elsewhere."""

LARGE = 1 << 23
"""The size in bytes from which the borders of a block on a device are computed separately."""


def in_one_call(source: Layout, outputs: Shape, dtype: torch.dtype, groups: int) -> bool:
    """Whether every worker has outputs, of real numbers, and computes them by a single call of torch."""
    filled = all(n >= p for n, p in zip(outputs, source.grid.shape, strict=True))
    return filled and dtype.is_floating_point and (groups == 1 or source.grid.shape[1] == 1) and not autocasts()


def is_large_on_device(x: Tensor) -> bool:
    """Whether copying a block into a box takes longer than launching a few more kernels."""
    return x.is_cuda and x.nbytes >= LARGE


@dataclass(frozen=True)
class ConvNode:
    """A worker's part in a convolution."""

    transport: Transport
    team: Team
    name: str
    fetch: Fetch | None
    """None where every worker needs exactly what it holds."""
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """What torch pads around the box, or crops from the output of a transposed convolution."""
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] | None = None
    """That of a transposed convolution; None for others."""
    crops: tuple[int, ...] = ()
    """WindowRows to drop from the output, in the order of `F.pad`; none if empty."""

    @cached_property
    def adjoint_name(self) -> str:
        return f"the adjoint of {self.name}"

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, sums: Sums, call_id: CallId, wants_x: bool
    ) -> Tensor:
        """The outputs; `wants_x` says whether any worker needs the gradient of its block."""
        wanted = (wants_x, weight.requires_grad, bias is not None and bias.requires_grad)
        if not torch.is_grad_enabled() or True not in wanted:
            return self.made(x.detach(), weight, bias, keeps=False)[0]
        call = _Call(self, sums, call_id, wanted)
        return _Convolved.apply(x, weight, bias, anchor_unless(x.requires_grad or wanted[1] or wanted[2]), call)

    @cached_property
    def border(self) -> BorderConv | None:
        """How the borders of a large block are computed separately; None where they cannot be."""
        if self.fetch is None or self.output_padding is not None or self.crops:
            return None
        return BorderConv.of(self.fetch, self.stride, self.padding, self.dilation, self.groups)

    def border_for(self, x: Tensor, weight: Tensor) -> BorderConv | None:
        """The same, if it can be used for these tensors and is worth it."""
        if not is_large_on_device(x) or self.border is None:
            return None
        return self.border if self.border.suits(x, weight) else None

    def made(self, x: Tensor, weight: Tensor, bias: Tensor | None, keeps: bool) -> tuple[Tensor, list[Tensor]]:
        """The outputs, and what is kept for backward besides the worker's block."""
        if (border := self.border_for(x, weight)) is not None:
            return border.forward(plain(x), weight, bias)
        box = x if self.fetch is None else self.fetch(plain(x))
        y = torch.convolution(box, weight, bias, *self._arguments)
        return F.pad(y, [-n for n in self.crops]) if self.crops else y, self._kept(box) if keeps else []

    def _kept(self, box: Tensor) -> list[Tensor]:
        fetch = self.fetch
        if fetch is None or fetch.is_identity:
            return []
        return [box] if fetch.bytes_freed(box) < saved_input.LEAST else fetch.received_pieces(box)

    def box_of(self, x: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """The box, assembled again from this worker's block and what was kept."""
        fetch = self.fetch
        if fetch is None or fetch.is_identity:
            return x
        whole = len(kept) == 1 and kept[0].shape == fetch.shape
        return kept[0] if whole else fetch.put_together(x, kept)

    def gradients(self, y: Tensor, box: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Gradients:
        """The gradients that are wanted, from that of the outputs."""
        made = torch.ops.aten.convolution_backward.default(y, box, weight, (y.shape[1],), *self._arguments, wanted)
        return cast(Gradients, made)

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        """The arguments of `torch.convolution` after the tensors."""
        transposed, room = self.output_padding is not None, self.output_padding or (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, transposed, room, self.groups


class _Call:
    """What the backward of one call of a convolution needs to know."""

    def __init__(self, node: ConvNode, sums: Sums, call_id: CallId, wanted: tuple[bool, bool, bool]) -> None:
        self.node, self.wanted = node, wanted
        self.call_id = CallId(
            call_id.key + 2, call_id.call, call_id.depth
        )  # so that a worker without this node is noticed
        self.fetch = node.fetch if wanted[0] else None
        self.sums = [each if needed else None for each, needed in zip(sums, wanted[1:], strict=True)]
        self.team = node.team if self.fetch or any(self.sums) else (node.transport.rank,)
        """The workers that take part in backward: this one alone where nothing is sent."""

    def gradients_unrecorded(self, y: Tensor, x: Tensor, weight: Tensor, kept: Sequence[Tensor]) -> Gradients:
        """The gradients, from that of the outputs; nothing is recorded."""
        if (border := self.node.border_for(x, weight)) is not None:
            of_x, *parts = border.backward(y, x, weight, kept, self.wanted)
        else:
            of_x, *parts = self.node.gradients(y, self.node.box_of(x, kept), weight, self.wanted)
            if self.fetch is not None:
                of_x = self.fetch.adjoint(cast(Tensor, of_x))
        return of_x, *self._summed(*parts)

    def _summed(self, of_weight: Tensor | None, of_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of the parameters, summed over their replicas."""
        first, second = self.sums
        if first is not None and second is not None and first[0].team == second[0].team:
            assert of_weight is not None
            assert of_bias is not None
            both = first[0].adjoint(torch.cat((of_weight.reshape(-1), of_bias)))
            total, of_bias = torch.split_with_sizes(both, (of_weight.numel(), of_bias.numel()))
            return total.view(of_weight.shape), of_bias
        if first is not None:
            of_weight = first[0].adjoint(cast(Tensor, of_weight))
        if second is not None:
            of_bias = second[0].adjoint(cast(Tensor, of_bias))
        return of_weight, of_bias

    def gradients_recorded(self, y: Tensor, x: Tensor, weight: Tensor, kept: Sequence[Tensor], depth: int) -> Gradients:
        """The same, through nodes that can be differentiated again."""
        key, call, _ = self.call_id
        if self.sums[0] is not None:  # its gradient is a sum
            operator, own = self.sums[0]
            weight = apply(weight, operator, CallId(own + 1, call, depth), True)
        if self.fetch is None:
            of_x, *parts = self.node.gradients(y, self.node.box_of(x, kept), weight, self.wanted)
        else:  # fetched again, so that the box is part of the graph
            box = apply(x, self.fetch, CallId(key + 1, call, depth), True)
            of_x, *parts = self.node.gradients(y, box, weight, self.wanted)
            of_x = apply(cast(Tensor, of_x), self.fetch.adjoint, CallId(key, call, depth), True)
        for i, each in enumerate(self.sums):
            if each is not None:
                operator, own = each
                parts[i] = apply(cast(Tensor, parts[i]), operator.adjoint, CallId(own, call, depth), True)
        return of_x, parts[0], parts[1]


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor | None, call: _Call) -> Tensor:
        ctx.call = call
        y, kept = call.node.made(x, weight, bias, keeps=True)
        prepare(ctx, x, weight, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        node, call_id = call.node, call.call_id.differentiated()
        x, weight, *kept = meet(ctx, node.transport, call.team, node.adjoint_name, call_id)
        y = F.pad(y, node.crops) if node.crops else y
        if torch.is_grad_enabled():
            return *call.gradients_recorded(y, x, weight, kept, call_id.depth), None, None
        return *call.gradients_unrecorded(y, x, weight, kept), None, None
