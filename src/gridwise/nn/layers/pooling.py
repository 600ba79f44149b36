"""Pooling on batch x channel x space grids, with all of torch's arguments.

A window across a block boundary is an ordinary window: its worker has fetched all of it. How a box of the output is
computed from the windows that it sees: `operators.windows.pooling`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...grid import Shape
from ...operators.call import TensorSpec
from ...operators.on_boxes import Local
from ...operators.windows.pooling import avg_pool, max_pool
from ...partition import Partition
from ..docstrings import arguments_of, documented_like
from ..mixins import PoolingMixin
from ..windows.windowed_layer import Size, WindowedLayer

MAX_POOL: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


class DistributedPoolingBase(WindowedLayer):
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

    kernel_size: Size
    stride: Size | None
    padding: Size
    ceil_mode: bool
    _arguments: ClassVar[tuple[str, ...]]
    """The settings that torch's operator takes, in its order."""
    _compute_min_input_range = PoolingMixin._compute_min_input_range
    _compute_max_input_range = PoolingMixin._compute_max_input_range

    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        super().__init__(P_x)
        self._takes_part(P_x, signature=template.extra_repr())
        self._set_template(template)

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        self._try_layer(type(self._template)(2), dtype)
        return super()._shape_by_torch(shape, dtype)

    def _operator(self, x: TensorSpec, shape: Shape) -> Local:
        given = [getattr(self._sequential, name) for name in self._arguments]
        if "dilation" not in self._arguments:
            return avg_pool(self._call(x, shape, f"avg_pool{self.dims}d", *given))
        indices = "_with_indices" if self.return_indices else ""
        return max_pool(self._call(x, shape, f"max_pool{self.dims}d{indices}", *given))


def _by_max_pool(self: Any, x: Tensor) -> Any:
    window = self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
    return MAX_POOL[self.dims](x, *window)


MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")


class DistributedMaxPool2d(DistributedPoolingBase):
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

    dims, _arguments, _settings, _by_torch = 2, MAX, (*MAX, "return_indices"), _by_max_pool
    __init__ = arguments_of(torch.nn.MaxPool2d)(DistributedPoolingBase.__init__)


@documented_like(DistributedMaxPool2d)
class DistributedMaxPool1d(DistributedPoolingBase):
    dims, _arguments, _settings, _by_torch = 1, MAX, (*MAX, "return_indices"), _by_max_pool
    __init__ = arguments_of(torch.nn.MaxPool1d)(DistributedPoolingBase.__init__)


@documented_like(DistributedMaxPool2d)
class DistributedMaxPool3d(DistributedPoolingBase):
    dims, _arguments, _settings, _by_torch = 3, MAX, (*MAX, "return_indices"), _by_max_pool
    __init__ = arguments_of(torch.nn.MaxPool3d)(DistributedPoolingBase.__init__)


class DistributedAvgPool2d(DistributedPoolingBase):
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

    dims, _arguments, _settings = 2, (*AVG, "divisor_override"), (*AVG, "divisor_override")
    __init__ = arguments_of(torch.nn.AvgPool2d)(DistributedPoolingBase.__init__)


@documented_like(DistributedAvgPool2d)
class DistributedAvgPool1d(DistributedPoolingBase):
    """`torch.nn.AvgPool1d` on a grid: the same result for every argument, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, length), or without the batch
    kernel_size, ..., count_include_pad : as in torch; `stride` defaults to `kernel_size`
    """

    dims, _arguments, _settings = 1, AVG, AVG
    __init__ = arguments_of(torch.nn.AvgPool1d)(DistributedPoolingBase.__init__)


@documented_like(DistributedAvgPool2d)
class DistributedAvgPool3d(DistributedPoolingBase):
    dims, _arguments, _settings = 3, (*AVG, "divisor_override"), (*AVG, "divisor_override")
    __init__ = arguments_of(torch.nn.AvgPool3d)(DistributedPoolingBase.__init__)
