"""A worker's part in a convolution, plain or transposed: what it fetches, and how it computes its outputs from that.

    plan    which channels and rows its outputs see (`operators.windows`), and who pads them:
                the margins of the fetch     zeros, in one copy with the halos
                the route                    circular padding wraps
                torch, from both ends alike  zeros, where that makes exactly these outputs
                torch, locally               reflection and replication
    call    one node of autograd (`conv_node`), or, where one call of torch is not enough, one for each step

Weight and bias are given at each call: those of this worker's output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import (
    Box,
    Cuts,
    Grid,
    Interval,
    Layout,
    Needs,
    Padding,
    groups_of,
    hull_then_pad,
    leave_to_torch,
    route,
    window_need,
)
from ...grid.cuts import interval
from ...operators.on_grids import needs_of_blocks
from ...operators.windows.convolution import ConvolutionOnBoxes
from ...operators.windows.one_dim import Windows
from ...operators.windows.transposed_convolution import TransposedOnBoxes
from ..engine.operator import CallId, apply
from .conv_node import ConvNode, in_one_call
from .fetch import Fetch
from .local_part import empty_output
from .saved_input import FetchedInput, WindowInput

Compute = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""The outputs from the fetched and padded input, the weight and the bias."""


@dataclass(frozen=True)
class Channels:
    """A worker's share of the channels: output channels, and the inputs it uses within each of their groups."""

    outputs: Interval
    inputs: Interval


@dataclass(frozen=True)
class ConvPart:
    """What one worker does."""

    block: Box | None
    """Its outputs; None for a worker that has none."""
    fetch: Fetch | None
    """None where every worker needs exactly what it owns."""
    compute: Compute
    node: ConvNode | None = None
    """A whole call as one node of autograd; the same on all workers."""
    pad: Callable[[Tensor], Tensor] | None = None

    def fetched(self, x: Tensor, call_id: CallId, records: bool) -> WindowInput:
        """The part of the global input that this worker's outputs depend on, padded.

        `records`: whether autograd records the movement, the same on all workers.
        """
        if self.fetch is None:
            box = x.detach().requires_grad_() if records and not x.requires_grad else x
        else:
            box = apply(x, self.fetch, call_id, records)
        pad = self.pad if box.numel() else None
        if self.fetch is None or self.fetch.is_identity or not box.numel():
            return WindowInput(box if pad is None else pad(box))
        return FetchedInput(x, self.fetch, box, pad, True)

    def in_steps(self, x: Tensor, weight: Tensor, bias: Tensor | None, call_id: CallId, records: bool) -> Tensor:
        """The outputs of a worker that has some, or has an empty block of them."""
        assert self.block is not None
        window, shape = self.fetched(x, call_id, records), self.block.shape
        if not self.block.volume or not weight.shape[1]:
            return empty_output(shape, window.x, weight, bias)
        if not window.x.numel():  # no input reaches these outputs: they equal the bias
            y = empty_output(shape, window.x, weight)
            return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * (y.dim() - 2))
        return window.computed(lambda x: self.compute(x, weight, bias))


@dataclass(frozen=True)
class WindowRows:
    """How one worker makes the rows of one dim that its outputs see.

    Fetch `hull` with `margin` around it, pad the result by `pad`, take `crop` of that, and let torch pad by `native`.
    """

    hull: Interval
    margin: Interval = (0, 0)
    pad: Interval = (0, 0)
    crop: Interval | None = None
    native: int = 0

    @classmethod
    def padded(cls, padding: Padding, by_margin: bool) -> WindowRows:
        """Padding of any mode, done by the margins of the fetch (a constant) or locally by torch."""
        around = (padding.before, padding.after)
        if by_margin:
            return cls(padding.hull, margin=around)
        length = padding.hull[1] - padding.hull[0] + sum(around)
        return cls(padding.hull, pad=around, crop=None if padding.crop == (0, length) else padding.crop)


def plain_part(
    operator: ConvolutionOnBoxes, transport: Transport, team: Team, name: str, source: Layout, target: Layout,
    dtype: torch.dtype, mode: str = "zeros",
) -> ConvPart:  # fmt: skip
    """The part in a convolution whose outputs are cut by `target`, on the grid of the input."""
    work = [Channels(outputs, (0, operator.weight[1])) for outputs in pairwise(target.cuts[1])]
    cuts = target.cuts[0], work, target.cuts[2:]
    node = mode in ("zeros", "circular") and in_one_call(source, target.global_shape, dtype, operator.groups)
    return part_on_grid(operator, transport, team, name, source, target.grid, cuts, mode, node)


def part_on_grid(
    operator: ConvolutionOnBoxes, transport: Transport, team: Team, name: str, source: Layout, grid: Grid,
    cuts: tuple[Cuts, Sequence[Channels], Sequence[Cuts]], mode: str, one_node: bool = False,
) -> ConvPart:  # fmt: skip
    """The part on a grid with axes (batch, channels, *space): how the batch is cut, who does which channels, and space."""
    batch, work, space = cuts
    lines = [
        [_rows(window, outputs, mode, depth=d == 0 and len(space) == 3) for outputs in pairwise(each)]
        for d, (window, each) in enumerate(zip(operator.windows, space, strict=True))
    ]
    channels = tuple(_inputs_of(operator, part) for part in work)
    hulls = [tuple(rows.hull for rows in line) for line in lines]
    wrap = (False, False, *(mode == "circular",) * len(space))
    needs, rank = Needs(grid, (tuple(pairwise(batch)), channels, *hulls), wrap), transport.rank
    mine: tuple[WindowRows, ...] = ()
    block, own = None, Channels((0, 0), (0, 0))
    if rank in grid:
        at, part, *index = grid.index_of(rank)
        mine, own = tuple(line[i] for line, i in zip(lines, index, strict=True)), work[part]
        blocks = [interval(each, i) for each, i in zip(space, index, strict=True)]
        block = Box.of_intervals([interval(batch, at), own.outputs, *blocks])
    fetch = None
    if any(any(rows.margin) for line in lines for rows in line) or not _is_owned(needs, source):
        margins = ((0, 0), (0, 0), *(rows.margin for rows in mine)) if mine else ()
        fetch = Fetch(
            transport, team, name, route(source, needs, rank), _nothing(source, rank), margins, fresh_gradients=True
        )  # fmt: skip
    padding = tuple(rows.native for rows in mine)

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return operator.in_groups(_of_channels(x, operator, own), weight, bias, padding, own.outputs)

    node = None
    if one_node:
        node = one_of(transport, team, name, fetch, operator.stride, padding, operator.dilation, operator.groups)
    pads = any(any(rows.pad) or rows.crop is not None for rows in mine)
    return ConvPart(block, fetch, compute, node, partial(padded, rows=mine, mode=mode) if pads else None)


def transposed_part(
    operator: TransposedOnBoxes, transport: Transport, team: Team, name: str, source: Layout, target: Layout,
    dtype: torch.dtype,
) -> ConvPart:  # fmt: skip
    """The part in a transposed convolution whose outputs are cut by `target`, on the grid of the input."""
    (needs,), rank = needs_of_blocks(lambda box: operator.needs(box)[:1], target), transport.rank
    block, fetch, node = target.block(rank), None, None
    if not _is_owned(needs, source):
        fetch = Fetch(
            transport, team, name, route(source, needs, rank), _nothing(source, rank), fresh_gradients=True
        )  # fmt: skip
    if in_one_call(source, target.global_shape, dtype, operator.groups) and _all_crop(operator, target):
        cuts = operator.cuts(block)
        padding, extra = (tuple(cut.padding for cut in cuts), tuple(cut.output_padding for cut in cuts))
        crops = tuple(n for cut in reversed(cuts) for n in cut.crop)
        window = operator.stride, padding, operator.dilation, operator.groups
        node = one_of(transport, team, name, fetch, *window, extra, crops if any(crops) else ())
    return ConvPart(block, fetch, partial(operator.run, block), node)


one_of: Callable[..., ConvNode | None] = ConvNode
"""Makes the node of a call; tests replace it."""


def _all_crop(operator: TransposedOnBoxes, target: Layout) -> bool:
    """Whether every worker cuts its outputs out of what torch makes; elsewhere there are rows that no input reaches."""
    return all(
        need[0] < need[1] and min(window.cut(outputs, need).crop) >= 0
        for window, cuts in zip(operator.windows, target.cuts[2:], strict=True)
        for outputs, need in ((outputs, window.need(outputs)) for outputs in pairwise(cuts))
    )


def _is_owned(needs: Needs, source: Layout) -> bool:
    """Whether every worker needs exactly its block."""
    return needs.grid == source.grid and needs.intervals == Needs.of_layout(source).intervals


def _nothing(source: Layout, rank: int) -> Callable[[Tensor], Tensor]:
    """Makes the result of a worker without outputs: ``(batch, 0)``, with its own batch if it has one."""
    batch = source.block(rank).shape[0] if rank in source.grid else source.global_shape[0]
    return lambda x: x.new_empty(batch, 0)


def _rows(window: Windows, outputs: Interval, mode: str, depth: bool) -> WindowRows:
    kernel, stride, dilation = window.kernel, window.stride, window.dilation
    need = window_need(outputs, kernel, stride, window.before, dilation)
    if mode == "circular":
        return WindowRows(need)
    padding = hull_then_pad(need, window.extent, mode)
    # conv3d's weight gradient is twice as fast if the depth is padded by hand rather than by torch
    by_torch = mode == "zeros" and not depth
    native = leave_to_torch(padding, outputs, kernel, stride, dilation) if by_torch else None
    if native is not None:
        return WindowRows(padding.hull, native=native)
    return WindowRows.padded(padding, by_margin=mode == "zeros")


def _inputs_of(operator: ConvolutionOnBoxes, work: Channels) -> Interval:
    """The input channels to fetch: of a single group those in use, of several groups all."""
    start, stop = operator.inputs_of(work.outputs)
    if start == stop or work.inputs[0] == work.inputs[1]:
        return 0, 0
    if stop - start == operator.weight[1]:
        return start + work.inputs[0], start + work.inputs[1]
    return start, stop


def _of_channels(x: Tensor, operator: ConvolutionOnBoxes, work: Channels) -> Tensor:
    """`x` with only the input channels that this worker uses."""
    first, last = groups_of(work.outputs, operator.per_group)
    start, stop = work.inputs
    if x.shape[1] == (last - first) * (stop - start):
        return x
    return x.unflatten(1, (last - first, -1)).narrow(2, start, stop - start).flatten(1, 2)


def padded(x: Tensor, rows: Sequence[WindowRows], mode: str) -> Tensor:
    """What was fetched, padded and cropped along each dim as its `WindowRows` say."""
    if any(any(line.pad) for line in rows):
        x = F.pad(x, [n for line in reversed(rows) for n in line.pad], "constant" if mode == "zeros" else mode)
    for d, line in enumerate(rows, 2):
        if line.crop is not None:
            x = x.narrow(d, line.crop[0], line.crop[1] - line.crop[0])
    return x
