"""A large convolution on a device without a padded copy of its block: halos are convolved separately, in narrow strips.

    forward    send halos ──► torch convolves the zero-padded block ──► the outputs at the borders are computed again, from
               strips of received and own rows
    backward   strips: gradients of received rows, which are sent, and their part in that of the weight ──► torch's
               gradients of the zero-padded block ──► what arrives is added to the rows at the borders

So messages are in flight while the device works on the block, and torch's kernels get extents that suit them. It needs
a stride of one, windows that reach equally far before and behind, and a grid that cuts one dim of space. The messages
are those of a fetched box, so each worker can decide for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...comm.messages.requests import NOTHING, Request
from ...grid import Side, borders_of
from .fetch import Fetch

Extents = tuple[int, ...]
Arguments = tuple[Extents, Extents, Extents, bool, Extents, int]
"""The arguments of `torch.convolution` after the tensors."""


@dataclass(frozen=True)
class BorderConv:
    """A convolution of a block whose borders are computed separately."""

    fetch: Fetch
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """What torch pads around the box; nothing along `dim`."""
    dilation: tuple[int, ...]
    groups: int
    dim: int
    reach: int
    """How many rows a window sees before and behind its middle, along `dim`."""
    sides: tuple[Side, ...]

    @classmethod
    def of(
        cls, fetch: Fetch, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...], groups: int
    ) -> BorderConv | None:
        """For a fetched box that is a stack with as many rows before the worker's own as behind; None for any other."""
        borders = borders_of(fetch.plan, fetch.margins)
        if borders is None or fetch.fill:
            return None
        dim, around = borders.dim, fetch.margins or ((0, 0),) * len(fetch.shape)
        if dim < 2 or stride[dim - 2] != 1 or padding[dim - 2]:
            return None
        if any(before != after for d, (before, after) in enumerate(around) if d != dim):
            return None
        padding = tuple(n + (0 if d == dim else around[d][0]) for d, n in enumerate(padding, 2))
        return cls(fetch, stride, padding, dilation, groups, dim, borders.reach, borders.sides)

    def suits(self, x: Tensor, weight: Tensor) -> bool:
        """Whether it can be used for these tensors."""
        d = self.dim
        is_centred = self.dilation[d - 2] * (weight.shape[d] - 1) == 2 * self.reach
        is_exact = x.dtype in (torch.float32, torch.float64)  # half precision is added in float32, by `fetch`
        return is_centred and is_exact and x.shape[d] >= 2 * self.reach

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """The outputs, and the received rows."""
        fetch, d = self.fetch, self.dim
        received = [x.new_empty(view.shape) for view in fetch.traffic.arriving]
        pending = fetch.transport.move(
            [(peer, [view(x) for view in views]) for peer, views in fetch.sends],
            [(peer, [piece]) for (peer, _), piece in zip(fetch.receives, received, strict=True)],
            x.dtype,
            fetch.name,
        )
        try:
            y = torch.convolution(x, weight, bias, *self._arguments(self.reach))
        finally:  # even after an error: peers still write to the memory of these messages
            pending.wait()
        for side in self.sides:
            rows = [received[side.number], self._border(x, side, 2 * self.reach)]
            strip = torch.cat(rows if side.is_first else rows[::-1], d)
            self._border(y, side).copy_(torch.convolution(strip, weight, bias, *self._arguments(0)))
        return y, received

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, received: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The wanted gradients: of the block, including what peers send for it, of the weight and of the bias."""
        wants_x, wants_weight, _ = wanted
        strips = {
            side.number: self._strip_gradients(dy, weight, received[side.number], side, wants_x, wants_weight)
            for side in (self.sides if wants_x or wants_weight else ())
        }
        traffic = self.fetch.adjoint.traffic
        arriving = [x.new_empty(view.shape) for view in traffic.arriving] if wants_x else []
        pending: Request = NOTHING
        if wants_x:
            pending = traffic.transport.move(
                [(peer, [strips[i][0]]) for i, (peer, _) in enumerate(traffic.sends)],
                [(peer, [piece]) for (peer, _), piece in zip(traffic.receives, arriving, strict=True)],
                x.dtype,
                traffic.what,
            )
        try:
            of_x, of_weight, of_bias = torch.ops.aten.convolution_backward.default(
                dy, x, weight, (dy.shape[1],), *self._arguments(self.reach), list(wanted)
            )
        finally:
            pending.wait()
        if wants_x:
            for view, piece in zip(traffic.arriving, arriving, strict=True):
                view(of_x).add_(piece)
        if wants_weight:
            for _, part in strips.values():
                of_weight.add_(part)
        return of_x, of_weight, of_bias

    def _strip_gradients(
        self, dy: Tensor, weight: Tensor, received: Tensor, side: Side, wants_x: bool, wants_weight: bool
    ) -> tuple[Tensor, Tensor]:
        """The gradient of the received rows at a side, and their part in that of the weight."""
        d, room = self.dim, 2 * self.reach
        zeros = [0] * (2 * (dy.dim() - 1 - d)) + ([0, room] if side.is_first else [room, 0])
        of_strip, of_weight, _ = torch.ops.aten.convolution_backward.default(
            self._border(dy, side).contiguous(),
            F.pad(received, zeros),
            weight,
            None,
            *self._arguments(0),
            [wants_x, wants_weight, False],
        )
        return of_strip.narrow(d, 0 if side.is_first else room, self.reach) if wants_x else of_strip, of_weight

    def _border(self, x: Tensor, side: Side, rows: int = 0) -> Tensor:
        """The outermost `rows` of a block at a side; by default as many as a window reaches."""
        rows = rows or self.reach
        return x.narrow(self.dim, 0 if side.is_first else x.shape[self.dim] - rows, rows)

    def _arguments(self, along: int) -> Arguments:
        """The arguments of `torch.convolution` after the tensors, with padding `along` in `dim`."""
        padding = (*self.padding[: self.dim - 2], along, *self.padding[self.dim - 1 :])
        return self.stride, padding, self.dilation, False, (0,) * len(self.stride), self.groups
