"""Transposed convolutions on batch x channel x space grids.

How outputs are cut out of what torch makes of the inputs that reach them: `operators.windows.transposed_convolution`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import PartitionError
from ...grid import Layout, Shape
from ...operators.windows.transposed_convolution import TransposedOnBoxes
from ...partition import Partition
from ..docstrings import documented_like
from ..engine.arguments import problem_with_sizes
from ..engine.autocast import autocasts
from ..parameters.blocks import Sharding
from ..windows.conv_part import ConvPart, transposed_part
from ..windows.output_size import OutputSize, agree_output_size, as_size, problem_with_output_size
from ..windows.windowed_layer import FunctionsByDims, LayersByDims, Size, WindowedLayer
from .conv_base import build_like_torchs, check_convolution


class ConvTranspose(WindowedLayer):
    """The common base of transposed convolutions; see `DistributedConvTranspose2d`."""

    sequential: ClassVar[LayersByDims] = {
        1: torch.nn.ConvTranspose1d, 2: torch.nn.ConvTranspose2d, 3: torch.nn.ConvTranspose3d,
    }  # fmt: skip
    function: ClassVar[FunctionsByDims] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    in_channels: int
    out_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    _fixed = (*WindowedLayer._fixed, "in_channels", "out_channels", "kernel_size", "groups")
    _required = ("weight",)
    _part: ConvPart
    _operator_on_boxes: TransposedOnBoxes
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
        build_like_torchs(self, self.sequential[self.dims], arguments, device, dtype, problem)
        self._asked: OutputSize = None

    def _shardings_of(self, template: Any) -> dict[str, Sharding]:
        """The weight (in, out / groups, *kernel) is cut along out without groups, along in if no group is split."""
        workers, whole = self._grid_x.shape[1], (None,) * self.dims
        axes: tuple[int | None, ...] = (None, None)
        if template.groups == 1:
            axes = (None, 1)
        elif template.groups % workers == 0:
            axes = (1, None)
        weight = Sharding(self._grid_x, (*axes, *whole), tuple(template.weight.shape))
        return {"weight": weight, "bias": Sharding(self._grid_x, (1,), (template.out_channels,))}

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

    def _mode(self) -> Hashable:
        return super()._mode(), autocasts()

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        check_convolution(self, self.function[self.dims], shape, dtype)
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
        strides, dilations = self._each(self.stride), self._each(self.dilation)
        paddings = self._each(self.output_padding) if self._asked is None else ()
        for extra, stride, dilation in zip(paddings, strides, dilations, strict=False):
            if extra >= max(stride, dilation):
                raise PartitionError(
                    f"{self._title}: `output_padding` (={extra}) must be smaller than the stride (={stride}) or the "
                    f"dilation (={dilation})."
                )
        target = Layout.balanced(source.grid, shape)
        weight = (self.in_channels, self.out_channels // self.groups, *self.kernel_size)
        window = strides, self._each(self.padding), dilations, self.groups
        self._operator_on_boxes = TransposedOnBoxes.of(source.global_shape, weight, True, *window)
        where = self.P_x.transport, self._team, self._title
        self._part = transposed_part(self._operator_on_boxes, *where, source, target, self._agreed.dtype)

    # Calling

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Any:
        return super().forward(input)

    def _local(self, x: Tensor) -> Tensor:
        part, records = self._part, self._agreed.requires_grad
        if part.node is not None:
            weight, bias, sums = self._raw_weight_and_bias()
            return part.node(x, weight, bias, sums, self._call_id, records)
        weight, bias = self._weight_and_bias()
        assert part.block is not None
        if self._shardings["weight"].axes[:2] == (None, None) and part.block.volume:  # whole on every worker
            weight = weight[self._operator_on_boxes.needs(part.block)[1].slices]
        return part.in_steps(self._agreed.convert(x), weight, bias, self._call_id, records)


class DistributedConvTranspose2d(ConvTranspose):
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

    dims = 2


@documented_like(DistributedConvTranspose2d)
class DistributedConvTranspose1d(ConvTranspose):
    dims = 1


@documented_like(DistributedConvTranspose2d)
class DistributedConvTranspose3d(ConvTranspose):
    dims = 3
