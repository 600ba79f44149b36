"""Pooling on batch x channel x space grids, with all of torch's arguments.

    max    y[o] = max of x over the window of o        the first one if tied, so gradients and indices are torch's
    avg    y[o] = sum of x over the window / divisor   the divisor counts the window's rows by *global* index

A window across a block boundary is an ordinary window: its worker has fetched all of it. Rows are missing only at the
edges of the global tensor. Torch itself pads those before the first row, and surplus outputs are cropped; those after
the last are filled in (0, or -inf, which never wins). With `ceil_mode` or without `count_include_pad`, an average at an
edge has another divisor than torch would find on a block, so sums are computed and divided by our own counts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import PartitionError
from ...grid import Cuts, Interval, Layout, Shape, hull_then_pad, window_need
from ...operators.formats import HALVES, memory_format_of
from ...partition import Partition
from ..docstrings import LayerFamily
from ..mixins import PoolingMixin
from ..windows.windowed_layer import Rows, Share, Size, WindowedLayer

MAX_POOL: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


class DistributedPoolingBase(PoolingMixin, WindowedLayer):
    """The common base of pooling layers: fetch the windows of this worker's outputs and pool them with torch.

    The output is on `P_x` in balanced blocks; the input may come in any blocks.

    Parameters
    ----------
    P_x : the partition of the input
    template : torch's layer, which defines the window

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> isinstance(gridwise.nn.DistributedMaxPool2d(P_x, 2), gridwise.nn.DistributedPoolingBase)
    True
    """

    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        super().__init__(P_x)
        self._takes_part(P_x, signature=template.extra_repr())
        self._set_template(template)

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        self._try_layer(type(self._template)(2), dtype)
        return super()._shape_by_torch(shape, dtype)

    def _plan(self, source: Layout, shape: Shape) -> None:
        layer = self._sequential
        stride = layer.kernel_size if layer.stride is None else layer.stride
        sizes = layer.kernel_size, stride, layer.padding, getattr(layer, "dilation", 1)
        self._window = tuple(self._each(size) for size in sizes)
        fill = _least(self._agreed.dtype) if self._fills_with_least else 0.0
        self._share = self._share_on_grid(source, shape, fill=fill)
        self._extents = source.global_shape[2:]

    _fills_with_least = False

    def _rows(self, d: int, cuts: Cuts, extent: int) -> list[Rows]:
        kernel, stride, padding, dilation = (values[d] for values in self._window)
        lines = []
        for outputs in pairwise(cuts):
            need = hull_then_pad(window_need(outputs, kernel, stride, padding, dilation), extent, "constant")
            if need.hull[1] - need.hull[0] < self._least_rows(d):
                lines.append(Rows.padded(need, by_margin=True))
            else:
                lines.append(Rows(need.hull, margin=(0, max(0, need.after - need.before)), native=need.before))
        return lines

    def _least_rows(self, d: int) -> int:
        """The fewest rows that torch accepts, besides those that it pads."""
        return 1

    def _local(self, x: Tensor, share: Share) -> Any:
        window = self._window_input(x)
        if share.is_empty:
            return self._empty(share, window.x)
        native = tuple(line.native for line in share.rows)
        return self._finished(window.computed(lambda x: self._pooled(x, native)), window.x, share)

    @abstractmethod
    def _pooled(self, x: Tensor, padding: tuple[int, ...]) -> Any:
        """The result of torch's pooling of `x`."""

    @abstractmethod
    def _finished(self, y: Any, x: Tensor, share: Share) -> Any:
        """This worker's outputs, from torch's result `y` for `x`."""


class MaxPool(LayerFamily, DistributedPoolingBase):
    """`torch.nn.MaxPool2d` on a grid: the same result for every argument, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    kernel_size, ..., ceil_mode : as in torch; `stride` defaults to `kernel_size`
    return_indices : also return the indices of the maxima, flat and *global*, as the sequential layer does

    Shape
    -----
    - input: ``(batch, channel, height, width)``, or without the batch; this worker's block of it
    - output, and indices: like the input, with the extents that torch's layer makes

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedMaxPool2d(P_x, 2)(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    kernel_size: Size
    stride: Size | None
    padding: Size
    dilation: Size
    ceil_mode: bool
    _settings = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
    _fills_with_least = True

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        layer: type[torch.nn.Module] = {1: torch.nn.MaxPool1d, 2: torch.nn.MaxPool2d, 3: torch.nn.MaxPool3d}[self.dims]
        super().__init__(P_x, layer(kernel_size, stride, padding, dilation, return_indices, ceil_mode))

    def _rows(self, d: int, cuts: Cuts, extent: int) -> list[Rows]:
        kernel, stride, padding, dilation = (values[d] for values in self._window)
        for start in range(-padding, 0, stride):
            first = start % dilation
            if (start + padding) // stride < cuts[-1] and not first < min(extent, start + dilation * (kernel - 1) + 1):
                raise PartitionError(
                    f"{self._title}: dim {2 + d} of extent {extent} has a window without any input (it starts at {start} "
                    f"with {kernel} rows at distance {dilation}): its maximum is undefined.\n"
                    "  fix: less padding or dilation."
                )
        return super()._rows(d, cuts, extent)

    def _pooled(self, x: Tensor, padding: tuple[int, ...]) -> Any:
        kernel, stride, _, dilation = self._window
        return MAX_POOL[self.dims](x, kernel, stride, padding, dilation, return_indices=self.return_indices)

    def _by_torch(self, x: Tensor) -> Any:
        window = self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        return MAX_POOL[self.dims](x, *window)

    def _finished(self, y: Any, x: Tensor, share: Share) -> Any:
        if not self.return_indices:
            return cropped(y, share.shape)
        starts = tuple(line.hull[0] for line in share.rows)
        indices = global_indices(cropped(y[1], share.shape), x.shape[2:], starts, self._extents)
        return cropped(y[0], share.shape), indices


class AvgPool(LayerFamily, DistributedPoolingBase):
    """`torch.nn.AvgPool2d` on a grid: the same result for every argument, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    kernel_size, ..., divisor_override : as in torch; `stride` defaults to `kernel_size`

    Shape
    -----
    - input: ``(batch, channel, height, width)``, or without the batch; this worker's block of it
    - output: like the input, with the extents that torch's layer makes

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedAvgPool2d(P_x, 2)(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    count_include_pad: bool
    _settings: ClassVar[tuple[str, ...]] = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

    def _plan(self, source: Layout, shape: Shape) -> None:
        super()._plan(source, shape)
        block = self._share.block
        counts = [self._counts(d, (block.start[2 + d], block.stop[2 + d])) for d in range(self.dims)]
        override = getattr(self._sequential, "divisor_override", None)
        self._divisor = override or math.prod(line[0] if line else 1 for line in counts)
        self._divisors: Tensor | None = None
        if override is None and any(len(set(line)) > 1 for line in counts):
            self._divisor, self._divisors = 1, torch.ones((), dtype=torch.float64, device="cpu")
            for line in counts:
                self._divisors = self._divisors.unsqueeze(-1) * torch.tensor(line, dtype=torch.float64, device="cpu")

    def _least_rows(self, d: int) -> int:
        return self._window[0][d] if self.dims == 3 else 1  # avg_pool3d needs as many rows as its kernel, unpadded

    def _counts(self, d: int, outputs: Interval) -> list[int]:
        """How many rows of dim `d` count in the average of each output: of the tensor, or of the padded tensor."""
        kernel, stride, padding, _ = (values[d] for values in self._window)
        low, high = (-padding, self._extents[d] + padding) if self.count_include_pad else (0, self._extents[d])
        starts = [stride * o - padding for o in range(*outputs)]
        return [min(start + kernel, high) - max(start, low) for start in starts]

    def _pooled(self, x: Tensor, padding: tuple[int, ...]) -> Tensor:
        kernel, stride, _, _ = self._window
        if self._divisors is not None and x.dtype in HALVES:
            x = x.float()  # so that the result is rounded once, after the division
        if self.dims == 1:  # avg_pool1d has no argument for the divisor
            x = x.unsqueeze(2)
            return _averaged(x, (1, *kernel), (1, *stride), (0, *padding), self._divisor).squeeze(2)
        if self.dims == 2:
            return _averaged(x, kernel, stride, padding, self._divisor)
        return F.avg_pool3d(x, kernel, stride, padding, divisor_override=self._divisor)

    def _finished(self, y: Any, x: Tensor, share: Share) -> Tensor:
        y = cropped(y, share.shape)
        if self._divisors is None:
            return y
        whole = None if y.dtype.is_floating_point else "trunc"
        return torch.div(y, self._divisors.to(y), rounding_mode=whole).to(x.dtype)


def cropped(y: Tensor, shape: Shape) -> Tensor:
    """The wanted outputs, without the surplus that torch makes because it pads both ends alike."""
    if y.shape == shape:
        return y
    for d, n in enumerate(shape[2:], 2):
        y = y.narrow(d, 0, n)
    return y.contiguous()


def _averaged(x: Tensor, kernel: Shape, stride: Shape, padding: Shape, divisor: int) -> Tensor:
    """`F.avg_pool2d`; on CUDA in contiguous memory, because torch's gradient for channels last is wrong there."""
    form = memory_format_of(x)
    if x.is_cuda:
        x = x.contiguous().flatten().view(x.shape)  # a single channel's strides can pass for channels last
    y = F.avg_pool2d(x, kernel, stride, padding, divisor_override=divisor)
    return y.contiguous(memory_format=form) if x.is_cuda else y


def global_indices(flat: Tensor, local: Shape, starts: Shape, extents: Shape) -> Tensor:
    """Flat indices into a block of shape `local` at `starts`, turned into flat indices into the global tensor."""
    total, scale = torch.zeros_like(flat), 1
    for size, start, extent in zip(reversed(local), reversed(starts), reversed(extents), strict=True):
        total = total + (flat % size + start) * scale
        flat, scale = flat // size, scale * extent
    return total


def _least(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


class DistributedMaxPool2d(MaxPool):
    dims = 2


class DistributedMaxPool1d(MaxPool):
    dims = 1


class DistributedMaxPool3d(MaxPool):
    dims = 3


class DistributedAvgPool2d(AvgPool):
    dims = 2
    _settings = (*AvgPool._settings, "divisor_override")

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        layer: type[torch.nn.Module] = {2: torch.nn.AvgPool2d, 3: torch.nn.AvgPool3d}[self.dims]
        super().__init__(P_x, layer(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override))


class DistributedAvgPool1d(AvgPool):
    """`torch.nn.AvgPool1d` on a grid: the same result for every argument, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, length), or without the batch
    kernel_size, ..., count_include_pad : as in torch; `stride` defaults to `kernel_size`
    """

    dims = 1

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        layer: type[torch.nn.Module] = torch.nn.AvgPool1d
        super().__init__(P_x, layer(kernel_size, stride, padding, ceil_mode, count_include_pad))


class DistributedAvgPool3d(DistributedAvgPool2d):
    dims = 3
