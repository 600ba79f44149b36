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

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import PartitionError
from ...grid import Box, Copies, Cuts, Grid, Layout, Shape, balanced_cuts
from ...operators.windows.convolution import ConvolutionOnBoxes
from ...partition import Partition
from ...torch_internals.modules import padding_of
from ..engine.agreement import key_of
from ..engine.arguments import need_partition, problem_with_sizes, refuse_partitions
from ..engine.autocast import dtype_of_products
from ..engine.copy_and_sum import Copy, Sum
from ..engine.operator import CallId, apply
from ..parameters.blocks import Sharding
from ..windows.conv_part import Channels, ConvPart, part_on_grid, plain_part
from ..windows.windowed_layer import FunctionsByDims, LayersByDims, Size, WindowedLayer


class Conv(WindowedLayer):
    """The common base of convolutions; see `DistributedConv2d` for the arguments."""

    splits_sums: ClassVar[bool | None] = None
    """Whether the family takes `P_y` and `P_w`; None if they are optional."""
    sequential: ClassVar[LayersByDims] = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}
    function: ClassVar[FunctionsByDims] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    in_channels: int
    out_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...] | str
    padding_mode: str
    _fixed = (*WindowedLayer._fixed, "in_channels", "out_channels", "kernel_size", "groups")
    _settings = ("stride", "padding", "dilation", "padding_mode")
    _required = ("weight",)
    _part: ConvPart
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
        build_like_torchs(self, self.sequential[self.dims], arguments, device, dtype, problem)

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

    def _shardings_of(self, template: Any) -> dict[str, Sharding]:
        weight, bias, whole = tuple(template.weight.shape), (template.out_channels,), (None,) * self.dims
        if self.P_w is None:
            return {
                "weight": Sharding(self._grid_x, (1, None, *whole), weight),
                "bias": Sharding(self._grid_x, (1,), bias),
            }
        grid = self.P_w.geometry
        adders = tuple(rank for rank in grid.ranks if grid.index_of(rank)[1] == 0)  # so that the bias is added once
        firsts = Grid(adders, (grid.shape[0], 1, *grid.shape[2:]))
        return {"weight": Sharding(grid, (0, 1, *whole), weight), "bias": Sharding(firsts, (0,), bias)}

    # Planning

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        check_convolution(self, self.function[self.dims], shape, dtype)
        made = super()._shape_by_torch(shape, dtype)
        if any(extent <= 0 for extent in made[2:]):  # torch's kernels refuse this, but not all of its shape functions
            raise PartitionError(
                f"{self._title} cannot take a global input of shape {shape}: Kernel size: "
                f"({' x '.join(map(str, self.kernel_size))}), larger than the padded input."
            )
        return made

    def _plan(self, source: Layout, shape: Shape) -> None:
        padding: Any = self.padding
        if self.padding_mode != "zeros":  # as at construction, as torch does
            padding = tuple(padding_of(self._sequential)[-2::-2])
        weight = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        window = self._each(self.stride), padding, self._each(self.dilation), self.groups
        operator = ConvolutionOnBoxes.of(source.global_shape, weight, True, *window)
        where = self.P_x.transport, self._team, self._title
        if self.P_w is None:
            target = Layout.balanced(source.grid, shape)
            self._part = plain_part(operator, *where, source, target, self._agreed.dtype, self.padding_mode)
        else:
            self._part = part_on_grid(operator, *where, source, *self._spread_work(shape), self.padding_mode)
        self._sum = self._sum_to_blocks(self._part.block, shape)

    def _spread_work(self, shape: Shape) -> tuple[Grid, tuple[Cuts, list[Channels], list[Cuts]]]:
        """The grid that computes, with axes (batch, channels, *space), and how each axis cuts the output."""
        assert self.P_w is not None
        made, summed, *extents = self.P_w.shape
        inputs = balanced_cuts(self.in_channels // self.groups, summed)
        work = [Channels(o, i) for o in pairwise(balanced_cuts(shape[1], made)) for i in pairwise(inputs)]
        space = [balanced_cuts(n, p) for n, p in zip(shape[2:], extents, strict=True)]
        # output and input channels share an axis: what a worker needs depends on its place along both
        return Grid(self.P_w.ranks, (1, made * summed, *extents)), ((0, shape[0]), work, space)

    def _sum_to_blocks(self, outputs: Box | None, shape: Shape) -> tuple[Sum, int] | None:
        """The sum of parts over the input channels into the blocks on P_y; None if each part is a block already."""
        if self.P_w is None or self.P_y is None:
            return None
        made, summed, *extents = self.P_w.shape
        turned = (summed, made, *extents)
        ranks = [self.P_w.geometry.rank_at((i, j, *at)) for j, i, *at in product(*map(range, turned))]
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
        return forth, key_of(f"{self._call_id.key} sum")

    # Calling

    def _local(self, x: Tensor) -> Tensor:
        part, records = self._part, self._agreed.requires_grad
        if part.node is not None:
            weight, bias, sums = self._raw_weight_and_bias()
            return part.node(x, weight, bias, sums, self._call_id, records)
        x = self._agreed.convert(x)
        if part.block is None:
            y = part.fetched(x, self._call_id, records).x
            y = y.to(dtype_of_products(y))
        else:
            weight, bias = self._weight_and_bias()  # first, so that backward sends halos before it sums gradients
            if bias is not None and self.P_x.transport.rank not in self._shardings["bias"].holders:
                bias = None
            y = part.in_steps(x, weight, bias, self._call_id, records)
        if self._sum is None:
            return y
        operator, key = self._sum
        return apply(y, operator, CallId(key, self._call_id.call), self._wants_gradients or records)

    @property
    def _is_torchs_own(self) -> bool:
        return bool(self.padding_mode == "zeros")

    def _by_torch(self, x: Tensor) -> Tensor:
        convolve = self.function[self.dims]
        return convolve(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


# What plain and transposed convolutions share


def build_like_torchs(
    layer: Any,
    sequential: type[torch.nn.Module],
    arguments: Sequence[Any],
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    problem: str | None,
) -> None:
    """Build torch's layer with these arguments, and keep this worker's blocks of its parameters."""

    def make(device: torch.device | str | None) -> torch.nn.Module:
        return sequential(*arguments, device=device, dtype=dtype)

    layer._set_template(layer._build(make, layer._shardings_of, device, problem))


def check_convolution(layer: Any, convolve: Callable[..., Tensor], shape: Shape, dtype: torch.dtype) -> None:
    """Raise unless the layer takes a global input of this shape; and torch's error, if any, for these dtypes."""
    if shape[1] != layer.in_channels:
        raise PartitionError(
            f"{layer._title} needs `in_channels` (={layer.in_channels}) channels in dim 1 of the global input, got "
            f"{shape[1]}.\n  fix: channels are counted over all blocks of the grid, in the arguments and in the input."
        )
    x = torch.empty(0, dtype=dtype, device=layer._agreed.device)
    weight, bias, ones = layer._parameters.get("weight"), layer._parameters.get("bias"), (1,) * (layer.dims + 2)
    if weight is not None:
        layer._try_dtypes(lambda one: convolve(one(x, *ones), one(weight, *ones), one(bias, 1)))
