"""Adaptive pooling on batch x channel x space grids: see `operators.windows.adaptive_pooling`."""

from __future__ import annotations

from typing import ClassVar

import torch

from ...grid import Shape
from ...operators.call import TensorSpec
from ...operators.on_boxes import Local
from ...operators.windows.adaptive_pooling import adaptive_average, adaptive_maximum
from ...partition import Partition
from ..docstrings import arguments_of, documented_like
from ..windows.windowed_layer import WindowedLayer


class AdaptivePool(WindowedLayer):
    """The common base of adaptive pooling layers; see `DistributedAdaptiveAvgPool2d`."""

    _settings: ClassVar[tuple[str, ...]] = ("output_size",)

    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        super().__init__(P_x)
        self._takes_part(P_x, signature=template.extra_repr())
        self._set_template(template)

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        self._try_layer(type(self._template)(2), dtype)
        return super()._shape_by_torch(shape, dtype)

    def _operator(self, x: TensorSpec, shape: Shape) -> Local:
        size = list(shape[2:])
        if "return_indices" not in self._settings:
            return adaptive_average(self._call(x, shape, f"adaptive_avg_pool{self.dims}d", size))
        return adaptive_maximum(self._call(x, shape, f"adaptive_max_pool{self.dims}d", size), self.return_indices)


class DistributedAdaptiveAvgPool2d(AdaptivePool):
    """`torch.nn.AdaptiveAvgPool2d` on a grid: the same result for every size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    output_size : the size of the global output, as in torch; None keeps the input's extent of a dim

    Shape
    -----
    - input: ``(batch, channel, height, width)``, or without the batch; this worker's block of it
    - output: like the input, with the extents `output_size`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedAdaptiveAvgPool2d(P_x, 4)(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    dims = 2
    __init__ = arguments_of(torch.nn.AdaptiveAvgPool2d)(AdaptivePool.__init__)


@documented_like(DistributedAdaptiveAvgPool2d)
class DistributedAdaptiveAvgPool1d(AdaptivePool):
    dims = 1
    __init__ = arguments_of(torch.nn.AdaptiveAvgPool1d)(AdaptivePool.__init__)


@documented_like(DistributedAdaptiveAvgPool2d)
class DistributedAdaptiveAvgPool3d(AdaptivePool):
    dims = 3
    __init__ = arguments_of(torch.nn.AdaptiveAvgPool3d)(AdaptivePool.__init__)


class DistributedAdaptiveMaxPool2d(AdaptivePool):
    """`torch.nn.AdaptiveMaxPool2d` on a grid: the same result for every size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    output_size : the size of the global output, as in torch; None keeps the input's extent of a dim
    return_indices : also return the indices of the maxima, flat and *global*, as the sequential layer does

    Shape
    -----
    - input: ``(batch, channel, height, width)``, or without the batch; this worker's block of it
    - output, and indices: like the input, with the extents `output_size`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedAdaptiveMaxPool2d(P_x, 4)(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    dims = 2
    _settings = ("output_size", "return_indices")
    __init__ = arguments_of(torch.nn.AdaptiveMaxPool2d)(AdaptivePool.__init__)


@documented_like(DistributedAdaptiveMaxPool2d)
class DistributedAdaptiveMaxPool1d(AdaptivePool):
    dims = 1
    _settings = ("output_size", "return_indices")
    __init__ = arguments_of(torch.nn.AdaptiveMaxPool1d)(AdaptivePool.__init__)


@documented_like(DistributedAdaptiveMaxPool2d)
class DistributedAdaptiveMaxPool3d(AdaptivePool):
    dims = 3
    _settings = ("output_size", "return_indices")
    __init__ = arguments_of(torch.nn.AdaptiveMaxPool3d)(AdaptivePool.__init__)
