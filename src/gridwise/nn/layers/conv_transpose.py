"""Transposed convolutions on batch x channel x space grids.

How outputs are cut out of what torch makes of the inputs that reach them: `operators.windows.transposed_convolution`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import PartitionError
from ...grid import Cuts, Interval, Layout, Shape, group_runs, groups_of, transposed_need
from ...operators.windows.transposed_convolution import OutputCrop, cut_out
from ...partition import Partition
from ..docstrings import LayerFamily
from ..engine.arguments import problem_with_sizes
from ..parameters.blocks import Spread
from ..windows.conv_node import ConvNode, in_one_call
from ..windows.local_part import empty_output
from ..windows.output_size import OutputSize, agree_output_size, as_size, problem_with_output_size
from ..windows.windowed_layer import FunctionsByDims, LayersByDims, Rows, Share, Size
from .conv_base import ConvLayer


class ConvTranspose(LayerFamily, ConvLayer):
    """`torch.nn.ConvTranspose2d` on a grid: the same result for every argument, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    in_channels, ..., padding_mode : as in torch; `padding` refers to the *global* tensor
    device, dtype : device and dtype of the parameters

    A call takes `output_size` after its input, as in torch: the size of the *global* output, the same on all workers.

    Shape
    -----
    - input: ``(batch, in_channels, height, width)``, or without the batch; this worker's block of it
    - output: ``(batch, out_channels, height, width)``, with the extents that torch's layer makes; a block of it

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> layer = gridwise.nn.DistributedConvTranspose2d(P_x, 8, 3, kernel_size=3, stride=2, padding=1, output_padding=1)
    >>> layer(torch.ones(2, 8, 4, 4)).shape
    torch.Size([2, 3, 8, 8])
    >>> layer(torch.ones(2, 8, 4, 4), output_size=[7, 7]).shape
    torch.Size([2, 3, 7, 7])
    """

    sequential: ClassVar[LayersByDims] = {
        1: torch.nn.ConvTranspose1d, 2: torch.nn.ConvTranspose2d, 3: torch.nn.ConvTranspose3d,
    }  # fmt: skip
    function: ClassVar[FunctionsByDims] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    _settings = ("stride", "padding", "output_padding", "dilation", "padding_mode")

    def __init__(
        self,
        P_x: Partition,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(P_x)
        arguments = (
            in_channels, out_channels, kernel_size, stride, padding,
            output_padding, groups, bias, dilation, padding_mode,
        )  # fmt: skip
        self._takes_part(P_x, signature=", ".join(map(repr, arguments)))

        sizes = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
        problem = problem_with_sizes(self.dims, **sizes, output_padding=output_padding, dilation=dilation)
        self._build_like_torchs(arguments, device, dtype, problem)
        self._channels: Interval = (0, 0)
        self._cuts: tuple[OutputCrop, ...] = ()
        self._asked: OutputSize = None

    def __call__(self, x: Tensor, output_size: Sequence[int] | None = None) -> Any:
        """The layer's output; `output_size` is the size of the *global* output, as in torch.

        It is passed on by position: the agreement before a call considers positional arguments only.
        """
        return super().__call__(x) if output_size is None else super().__call__(x, output_size)

    def _spreads_of(self, template: Any) -> dict[str, Spread]:
        """The weight (in, out / groups, *kernel) is cut along out without groups, along in if no group is split."""
        workers, whole = self._grid_x.shape[1], (None,) * self.dims
        axes: tuple[int | None, ...] = (None, None)
        if template.groups == 1:
            axes = (None, 1)
        elif template.groups % workers == 0:
            axes = (1, None)
        weight = Spread(self._grid_x, (*axes, *whole), tuple(template.weight.shape))
        return {"weight": weight, "bias": Spread(self._grid_x, (1,), (template.out_channels,))}

    # Planning

    def _problem_with(self, input: tuple) -> str | None:
        if len(input) == 2 and (problem := problem_with_output_size(input[1])):
            return problem
        return super()._problem_with(input[:1] if len(input) == 2 else input)

    def _structure_of(self, input: tuple) -> Hashable:
        return super()._structure_of(input), as_size(*input[1:])

    def _distdl_module_setup(self, input: tuple) -> None:
        self._asked = as_size(*input[1:])
        agree_output_size(self.P_x.transport, self._team, self._title, self._asked)
        super()._distdl_module_setup(input[:1])

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        template, asked = self._template, self._asked
        if asked is None:
            return super()._shape_by_torch(shape, dtype)
        plain = template.forward
        template.forward = lambda x: plain(x, list(asked))
        try:
            return super()._shape_by_torch(shape, dtype)
        finally:
            del template.forward

    def _plan(self, source: Layout, shape: Shape) -> None:
        if 0 in shape[2:]:
            raise PartitionError(
                f"{self._title} has an empty output for a global input of shape {source.global_shape}: {shape}."
            )
        self._stride, self._dilation = self._each(self.stride), self._each(self.dilation)
        paddings = self._each(self.output_padding) if self._asked is None else ()
        for extra, stride, dilation in zip(paddings, self._stride, self._dilation, strict=False):
            if extra >= max(stride, dilation):
                raise PartitionError(
                    f"{self._title}: `output_padding` (={extra}) must be smaller than the stride (={stride}) or the "
                    f"dilation (={dilation})."
                )
        rank, target = self.P_x.transport.rank, Layout.balanced(source.grid, shape)
        batch, channels, *space = target.cuts
        rows = [self._rows(d, cuts, source.global_shape[2 + d]) for d, cuts in enumerate(space)]
        per_group = self.in_channels // self.groups
        touched = [groups_of(outputs, self.out_channels // self.groups) for outputs in pairwise(channels)]
        inputs = [(first * per_group, last * per_group) for first, last in touched]
        fetch, mine = self._fetch_rows(source, source.grid, list(pairwise(batch)), inputs, rows)
        outputs = target.block(rank)
        self._channels = (outputs.start[1], outputs.stop[1])
        self._cuts = tuple(
            self._cut(d, (outputs.start[2 + d], outputs.stop[2 + d]), line.hull) for d, line in enumerate(mine)
        )
        self._share = Share(outputs, fetch, mine)
        self._single = self._single_node(source, target, rows)

    def _single_node(self, source: Layout, target: Layout, rows: Sequence[Sequence[Rows]]) -> ConvNode | None:
        """The call as one autograd node instead of one per step; None where one call of torch is not enough."""
        if not in_one_call(source, target.global_shape, self._agreed.dtype, self.groups):
            return None
        for d, (cuts, line) in enumerate(zip(target.cuts[2:], rows, strict=True)):
            for outputs, need in zip(pairwise(cuts), line, strict=True):
                if need.hull[0] == need.hull[1] or min(self._cut(d, outputs, need.hull).crop) < 0:
                    return None
        padding, extra = (tuple(cut.padding for cut in self._cuts), tuple(cut.output_padding for cut in self._cuts))
        crops = self._crops if any(self._crops) else ()
        arguments = self._stride, padding, self._dilation, self.groups, extra, crops
        return ConvNode(self.P_x.transport, self._team, self._title, self._share.fetch, *arguments)

    def _rows(self, d: int, cuts: Cuts, extent: int) -> list[Rows]:
        window = self.kernel_size[d], self._stride[d], self._each(self.padding)[d], self._dilation[d]
        return [Rows(transposed_need(outputs, *window, extent)) for outputs in pairwise(cuts)]

    def _cut(self, d: int, outputs: Interval, inputs: Interval) -> OutputCrop:
        stride, dilation = self._stride[d], self._dilation[d]
        before = outputs[0] + self._each(self.padding)[d] - stride * inputs[0]
        made = stride * (inputs[1] - inputs[0] - 1) + dilation * (self.kernel_size[d] - 1) + 1
        return cut_out((before, made - before - (outputs[1] - outputs[0])), stride, dilation)

    # Calling

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Any:
        return super().forward(x)

    def _local(self, x: Tensor) -> Tensor:
        share = self._share
        if self._single is not None:
            return self._in_one_node(x, self._single)
        weight, bias = self._weight_and_bias()
        window = self._window_input(x)
        x = window.x
        if share.is_empty:
            return empty_output(share.shape, x, weight, bias)
        if not x.numel():  # no input reaches these outputs: they equal the bias
            y = empty_output(share.shape, x, weight)
            return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * self.dims)
        pads = any(n < 0 for n in self._crops)
        y = window.computed(lambda x: self._in_groups(x, weight, None if pads else bias))
        if any(self._crops):
            y = F.pad(y, [-n for n in self._crops])
        return y + bias.view(-1, *(1,) * self.dims) if pads and bias is not None else y

    @property
    def _crops(self) -> tuple[int, ...]:
        """The rows to drop from torch's result, in the order of `F.pad`."""
        return tuple(n for cut in reversed(self._cuts) for n in cut.crop)

    def _in_groups(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One call of torch for all whole groups, and one for each partial group at the block's ends."""
        convolve = self.function[self.dims]
        padding = tuple(cut.padding for cut in self._cuts)
        extra = tuple(cut.output_padding for cut in self._cuts)
        per_group, per_input = self.out_channels // self.groups, self.in_channels // self.groups
        base = groups_of(self._channels, per_group)[0]
        held = self._spreads["weight"]
        runs, parts = group_runs(self._channels, per_group), []
        for (a, b), (first, last) in runs:
            window, some, kernel = x, bias, weight
            if len(runs) > 1:
                window = x.narrow(1, (first - base) * per_input, (last - first) * per_input)
                some = None if bias is None else bias[a - self._channels[0] : b - self._channels[0]]
            if held.axes[:2] == (None, None):
                kernel = weight[first * per_input : last * per_input]
                kernel = kernel[:, a - first * per_group : b - first * per_group] if last - first == 1 else kernel
            parts.append(convolve(window, kernel, some, self._stride, padding, extra, last - first, self._dilation))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class DistributedConvTranspose2d(ConvTranspose):
    dims = 2


class DistributedConvTranspose1d(ConvTranspose):
    dims = 1


class DistributedConvTranspose3d(ConvTranspose):
    dims = 3
