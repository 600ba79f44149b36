"""How the work of a convolution is divided over a batch x channel x space grid.

    y[n, o] = b[o] + sum_c w[o, c] * x[n, c]        * the windowed sum over space

Two ways to divide the work:

    only P_x         a worker computes its block of the output (batch, channels, space) from all input channels of its
                     groups, with the weight's rows for that block
    P_x, P_y, P_w    P_w (p_co, p_ci, *space): worker (i, j) holds block (i, j) of the weight and computes a part of
                     output block i from input block j; the parts are summed over j into the blocks on P_y

Weights are not sent in forward; their gradients are summed over the workers that hold the same block (`blocks`).
With groups, P_w's second axis cuts the channels inside each group. `conv` has the public classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import PartitionError
from ...grid import (
    Box,
    Copies,
    Cuts,
    Grid,
    Interval,
    Layout,
    Shape,
    balanced_cuts,
    group_runs,
    groups_of,
    hull_then_pad,
    leave_to_torch,
    window_need,
)
from ...grid.cuts import interval
from ...partition import Partition
from ...torch_internals.modules import padding_of
from ..engine.agreement import key_of
from ..engine.arguments import need_partition, problem_with_sizes, refuse_partitions
from ..engine.autocast import autocasts, dtype_of_products
from ..engine.copy_and_sum import Copy, Sum
from ..engine.operator import Ticket, apply
from ..parameters.blocks import Spread
from ..windows.conv_node import ConvNode, in_one_call
from ..windows.local_part import empty_output
from ..windows.windowed_layer import FunctionsByDims, LayersByDims, Rows, Share, Size, WindowedLayer


@dataclass(frozen=True)
class Channels:
    """A worker's share of the channels: output channels, and the inputs it uses within each of their groups."""

    outputs: Interval
    inputs: Interval


class ConvLayer(WindowedLayer):
    """The common base of plain and transposed convolutions: torch's layer, and a single autograd node if possible."""

    sequential: ClassVar[LayersByDims]
    function: ClassVar[FunctionsByDims]
    in_channels: int
    out_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    _fixed = (*WindowedLayer._fixed, "in_channels", "out_channels", "kernel_size", "groups")
    _required = ("weight",)
    _reads_values = True
    _single: ConvNode | None = None
    """Runs a whole call as one autograd node; None where one call of torch is not enough."""

    def _build_like_torchs(
        self,
        arguments: Sequence[Any],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        problem: str | None,
    ) -> None:
        def make(device: torch.device | str | None) -> torch.nn.Module:
            return self.sequential[self.dims](*arguments, device=device, dtype=dtype)

        def spreads(template: torch.nn.Module) -> dict[str, Spread]:
            return self._spreads_of(template)

        self._set_template(self._build(make, spreads, device, problem))

    def _spreads_of(self, template: Any) -> dict[str, Spread]:
        """How weight and bias are cut into blocks."""
        raise NotImplementedError

    def _mode(self) -> Hashable:
        return super()._mode(), autocasts()

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        self._need_channels(shape[1], self.in_channels)
        self._try_convolution(dtype, self.function[self.dims])
        return super()._shape_by_torch(shape, dtype)

    def _in_one_node(self, x: Tensor, node: ConvNode) -> Tensor:
        weight, bias, sums = self._raw_weight_and_bias()
        return node(x, weight, bias, sums, self._ticket, self._agreed.requires_grad)


class Conv(ConvLayer):
    """The common base of convolutions; see `DistributedConv2d` for the arguments."""

    splits_sums: ClassVar[bool | None] = None
    """Whether the family takes `P_y` and `P_w`; None if they are optional."""
    sequential: ClassVar[LayersByDims] = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}
    function: ClassVar[FunctionsByDims] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    padding: tuple[int, ...] | str
    padding_mode: str
    _settings = ("stride", "padding", "dilation", "padding_mode")
    _work: Channels
    _sum: tuple[Sum, int] | None = None

    def __init__(
        self,
        P_x: Partition,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        need_partition(type(self).__name__, "P_x", P_x, self.dims + 2)
        given = {"in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size}
        refuse_partitions(type(self).__name__, given, "P_x, in_channels, out_channels, kernel_size")
        super().__init__(P_x)
        self.P_y, self.P_w = P_y, P_w
        arguments = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        self._takes_part(*(p for p in (P_x, P_y, P_w) if p is not None), signature=", ".join(map(repr, arguments)))

        sizes = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        if not isinstance(padding, str):
            sizes["padding"] = padding
        problem = self._problem_with_partitions() or problem_with_sizes(self.dims, **sizes)
        self._build_like_torchs(arguments, device, dtype, problem)

    def _problem_with_partitions(self) -> str | None:
        if (self.P_w is None) != (self.P_y is None):
            return "needs both `P_y` and `P_w`, or neither"
        if self.splits_sums is not None and self.splits_sums != (self.P_w is not None):
            return f"{'needs' if self.splits_sums else 'takes no'} `P_y` and `P_w`"
        if self.P_w is None or self.P_y is None:
            return None
        y, w = self._grid_of(self.P_y, "P_y").shape, self.P_w.shape
        if len(w) != self.dims + 2:
            return f"`P_w` (={w}) needs {self.dims + 2} axes: output channels, input channels and {self.dims} of space"
        if y != (1, w[0], *w[2:]):
            return (
                f"`P_y` (={y}) must be {(1, w[0], *w[2:])}: one batch, and output channels and space as in `P_w` (={w})"
            )
        return None

    def _spreads_of(self, template: Any) -> dict[str, Spread]:
        weight, bias, whole = tuple(template.weight.shape), (template.out_channels,), (None,) * self.dims
        if self.P_w is None:
            return {"weight": Spread(self._grid_x, (1, None, *whole), weight), "bias": Spread(self._grid_x, (1,), bias)}
        grid = self.P_w.grid
        adders = tuple(rank for rank in grid.ranks if grid.index_of(rank)[1] == 0)  # so that the bias is added once
        firsts = Grid(adders, (grid.shape[0], 1, *grid.shape[2:]))
        return {"weight": Spread(grid, (0, 1, *whole), weight), "bias": Spread(firsts, (0,), bias)}

    # Planning

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        made = super()._shape_by_torch(shape, dtype)
        if any(extent <= 0 for extent in made[2:]):  # torch's kernels refuse this, but not all of its shape functions
            raise PartitionError(
                f"{self._title} cannot take a global input of shape {shape}: Kernel size: "
                f"({' x '.join(map(str, self.kernel_size))}), larger than the padded input."
            )
        return made

    def _plan(self, source: Layout, shape: Shape) -> None:
        self._pad_mode = self.padding_mode
        self._stride, self._dilation = self._each(self.stride), self._each(self.dilation)
        grid, batch, work, space = self._spread_work(source, shape)
        rows = [self._rows(d, cuts, source.global_shape[2 + d]) for d, cuts in enumerate(space)]
        channels, wraps = [self._channels_for(part) for part in work], self.padding_mode == "circular"
        fetch, mine = self._fetch_rows(source, grid, list(pairwise(batch)), channels, rows, wraps)
        outputs = None
        if (rank := self.P_x.transport.rank) in grid:
            at, part, *index = grid.index_of(rank)
            self._work = work[part]
            blocks = [interval(cuts, i) for cuts, i in zip(space, index, strict=True)]
            outputs = Box.of_intervals([interval(batch, at), self._work.outputs, *blocks])
        self._share = Share(outputs, fetch, mine)
        self._single = self._single_node(source, shape)
        self._sum = self._sum_to_blocks(outputs, shape)

    def _single_node(self, source: Layout, shape: Shape) -> ConvNode | None:
        """The call as one autograd node instead of one per step; None where one call of torch is not enough."""
        pads = self.padding_mode not in ("zeros", "circular")
        if self.P_w is not None or pads or not in_one_call(source, shape, self._agreed.dtype, self.groups):
            return None
        padding = tuple(line.native for line in self._share.rows)
        arguments = self._stride, padding, self._dilation, self.groups
        return ConvNode(self.P_x.transport, self._team, self._title, self._share.fetch, *arguments)

    def _spread_work(self, source: Layout, shape: Shape) -> tuple[Grid, Cuts, list[Channels], list[Cuts]]:
        """The grid that computes, with axes (batch, channels, *space), and how each axis cuts the output."""
        per_group = self.in_channels // self.groups
        if self.P_w is None:
            batch, channels, *space = Layout.balanced(source.grid, shape).cuts
            return source.grid, batch, [Channels(outputs, (0, per_group)) for outputs in pairwise(channels)], space
        made, summed, *extents = self.P_w.shape
        outputs, inputs = pairwise(balanced_cuts(shape[1], made)), balanced_cuts(per_group, summed)
        work = [Channels(output, each) for output in outputs for each in pairwise(inputs)]
        space = [balanced_cuts(n, p) for n, p in zip(shape[2:], extents, strict=True)]
        # output and input channels share an axis: what a worker needs depends on its place along both
        return Grid(self.P_w.ranks, (1, made * summed, *extents)), (0, shape[0]), work, space

    def _channels_for(self, work: Channels) -> Interval:
        """The input channels to fetch: of a single group those in use, of several groups all."""
        per_group = self.in_channels // self.groups
        first, last = groups_of(work.outputs, self.out_channels // self.groups)
        if first == last or work.inputs[0] == work.inputs[1]:
            return 0, 0
        if last - first == 1:
            return first * per_group + work.inputs[0], first * per_group + work.inputs[1]
        return first * per_group, last * per_group

    def _rows(self, d: int, cuts: Cuts, extent: int) -> list[Rows]:
        kernel, stride, dilation = self.kernel_size[d], self._stride[d], self._dilation[d]
        before = self._padding_before(d)
        lines = []
        for outputs in pairwise(cuts):
            need = window_need(outputs, kernel, stride, before, dilation)
            if self.padding_mode == "circular":
                lines.append(Rows(need))
                continue
            padding = hull_then_pad(need, extent, self.padding_mode)
            native = None
            # conv3d's weight gradient is twice as fast if the depth is padded by hand rather than by torch
            if self.padding_mode == "zeros" and not (self.dims == 3 and d == 0):
                native = leave_to_torch(padding, outputs, kernel, stride, dilation)
            if native is not None:
                lines.append(Rows(padding.hull, native=native))
            else:
                lines.append(Rows.padded(padding, by_margin=self.padding_mode == "zeros"))
        return lines

    def _padding_before(self, d: int) -> int:
        """How many rows are padded before the first; modes other than 'zeros' pad as at construction, as torch does."""
        if self.padding_mode != "zeros":
            return int(padding_of(self._sequential)[2 * (self.dims - 1 - d)])
        if isinstance(self.padding, str):
            return self._dilation[d] * (self.kernel_size[d] - 1) // 2 if self.padding == "same" else 0
        return self._each(self.padding)[d]

    def _sum_to_blocks(self, outputs: Box | None, shape: Shape) -> tuple[Sum, int] | None:
        """The sum of parts over the input channels into the blocks on P_y; None if each part is a block already."""
        if self.P_w is None or self.P_y is None:
            return None
        made, summed, *extents = self.P_w.shape
        turned = (summed, made, *extents)
        ranks = [self.P_w.grid.rank_at((i, j, *at)) for j, i, *at in product(*map(range, turned))]
        target = self._grid_of(self.P_y, "P_y")
        copies = Copies(target, Grid(tuple(ranks), turned))
        if copies.is_identity:
            return None
        rank = self.P_x.transport.rank
        block = Layout.balanced(target, shape).block(rank).shape if rank in target else None
        part = None if outputs is None else outputs.shape
        name = f"the adjoint of the sum of {self._title}"
        back = Copy(self.P_x.transport, self._team, name, copies, part, self._nothing, block)
        forth = back.adjoint
        forth.name = f"the sum of {self._title}"
        return forth, key_of(f"{self._ticket.key} sum")

    # Calling

    def _local(self, x: Tensor) -> Tensor:
        share = self._share
        if share.outputs is not None:
            y = self._convolved(x, share)
        else:
            y = self._window_input(x).x
            y = y.to(dtype_of_products(y))
        if self._sum is None:
            return y
        operator, key = self._sum
        records = self._wants_gradients or self._agreed.requires_grad
        return apply(y, operator, Ticket(key, self._ticket.call), records)

    def _convolved(self, x: Tensor, share: Share) -> Tensor:
        if self._single is not None:
            return self._in_one_node(x, self._single)
        weight, bias = self._weight_and_bias()  # first, so that backward sends halos before it sums gradients
        window = self._window_input(x)
        if bias is not None and self.P_x.transport.rank not in self._spreads["bias"].holders:
            bias = None
        if share.is_empty or not weight.shape[1]:
            return empty_output(share.shape, window.x, weight, bias)
        padding = tuple(line.native for line in share.rows)
        return window.computed(lambda x: self._in_groups(self._of_channels(x), weight, bias, padding))

    @property
    def _is_torchs_own(self) -> bool:
        return bool(self.padding_mode == "zeros")

    def _by_torch(self, x: Tensor) -> Tensor:
        convolve = self.function[self.dims]
        return convolve(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def _of_channels(self, x: Tensor) -> Tensor:
        """`x` with only the input channels that this worker uses."""
        first, last = groups_of(self._work.outputs, self.out_channels // self.groups)
        start, stop = self._work.inputs
        if x.shape[1] == (last - first) * (stop - start):
            return x
        return x.unflatten(1, (last - first, -1)).narrow(2, start, stop - start).flatten(1, 2)

    def _in_groups(self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, ...]) -> Tensor:
        """One call of torch for all whole groups, and one for each partial group at the block's ends."""
        convolve, (offset, _) = self.function[self.dims], self._work.outputs
        per_group = self.out_channels // self.groups
        runs = group_runs(self._work.outputs, per_group)
        if len(runs) == 1:
            (_, (first, last)) = runs[0]
            return convolve(x, weight, bias, self._stride, padding, self._dilation, last - first)
        parts, base = [], groups_of(self._work.outputs, per_group)[0]
        for (a, b), (first, last) in runs:
            window = x.narrow(1, (first - base) * weight.shape[1], (last - first) * weight.shape[1])
            some = None if bias is None else bias[a - offset : b - offset]
            kernel = weight[a - offset : b - offset]
            parts.append(convolve(window, kernel, some, self._stride, padding, self._dilation, last - first))
        return torch.cat(parts, 1)
