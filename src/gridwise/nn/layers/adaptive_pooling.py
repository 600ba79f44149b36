"""Adaptive pooling on batch x channel x space grids.

    output i of m reads the inputs [floor(i n / m), ceil((i + 1) n / m))       n, m, i global

Torch's kernel counts these coordinates from the start of the block, so it is called on runs of outputs for which that
makes no difference (`grid.adaptive_runs`): the whole block where m divides n, single outputs at worst.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...grid import Cuts, Interval, Layout, Shape, adaptive_need, adaptive_runs
from ...partition import Partition
from ..docstrings import LayerFamily
from ..windows.windowed_layer import FunctionsByDims, Rows, Share, WindowedLayer
from .pooling import global_indices

AVG_POOL: FunctionsByDims = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
MAX_POOL: dict[int, Any] = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}

AdaptiveSize = int | None | tuple[int | None, ...]
Run = tuple[Interval, Interval]
"""Outputs and the inputs that they read, relative to this worker's first output and first fetched row."""


class AdaptivePool(WindowedLayer):
    """The common base of adaptive pooling layers; see `DistributedAdaptiveAvgPool2d`."""

    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        super().__init__(P_x)
        self._takes_part(P_x, signature=template.extra_repr())
        self._set_template(template)
        self._runs: list[list[Run]] = []
        self._extents: Shape = ()

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        self._try_layer(type(self._template)(2), dtype)
        return super()._shape_by_torch(shape, dtype)

    def _plan(self, source: Layout, shape: Shape) -> None:
        self._extents = source.global_shape[2:]
        self._share = self._share_on_grid(source, shape)
        block, lines = self._share.block, zip(self._share.rows, self._extents, shape[2:], strict=True)
        outputs = zip(block.start[2:], block.stop[2:], strict=True)
        self._runs = [_runs(own, *line) for own, line in zip(outputs, lines, strict=True)]

    def _rows(self, d: int, cuts: Cuts, extent: int) -> list[Rows]:
        return [Rows(adaptive_need(outputs, extent, cuts[-1])) for outputs in pairwise(cuts)]

    def _local(self, x: Tensor, share: Share) -> Any:
        window = self._window_input(x)
        if share.is_empty:
            return self._empty(share, window.x)
        made = window.computed(self._by_runs)
        return made if self.return_indices else made[0]

    def _by_runs(self, x: Tensor) -> tuple[Tensor, ...]:
        """The results of all combinations of runs, concatenated."""
        parts = []
        for runs in product(*self._runs):
            inputs = x
            for d, (_, (start, stop)) in enumerate(runs, 2):
                inputs = inputs.narrow(d, start, stop - start)
            sizes = tuple(stop - start for (start, stop), _ in runs)
            parts.append(self._pooled(inputs, sizes, tuple(start for _, (start, _) in runs)))
        return tuple(self._put_together(list(each)) for each in zip(*parts, strict=True))

    @abstractmethod
    def _pooled(self, x: Tensor, sizes: Shape, starts: Shape) -> tuple[Tensor, ...]:
        """The part `x` of the input, which begins at `starts`, pooled to `sizes`; with indices if `return_indices`."""

    def _put_together(self, parts: list[Tensor]) -> Tensor:
        """Concatenate the results of all runs, last dim first."""
        for d in reversed(range(self.dims)):
            n = len(self._runs[d])
            if n > 1:
                parts = [torch.cat(parts[i : i + n], 2 + d) for i in range(0, len(parts), n)]
        return parts[0]


def _runs(outputs: Interval, rows: Rows, extent: int, size: int) -> list[Run]:
    """The runs of one dim, whose `extent` rows are pooled to `size`."""
    found = []
    for run in adaptive_runs(outputs, extent, size):
        need = adaptive_need(run, extent, size)
        found.append((_counted_from(outputs[0], run), _counted_from(rows.hull[0], need)))
    return found


def _counted_from(origin: int, rows: Interval) -> Interval:
    return rows[0] - origin, rows[1] - origin


class AdaptiveAvgPool(LayerFamily, AdaptivePool):
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

    _settings = ("output_size",)

    def __init__(self, P_x: Partition, output_size: AdaptiveSize) -> None:
        layer: type[torch.nn.Module] = getattr(torch.nn, f"AdaptiveAvgPool{self.dims}d")
        super().__init__(P_x, layer(output_size))

    def _pooled(self, x: Tensor, sizes: Shape, starts: Shape) -> tuple[Tensor, ...]:
        return (AVG_POOL[self.dims](x, sizes),)


class AdaptiveMaxPool(LayerFamily, AdaptivePool):
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

    _settings = ("output_size", "return_indices")

    def __init__(self, P_x: Partition, output_size: AdaptiveSize, return_indices: bool = False) -> None:
        layer: type[torch.nn.Module] = getattr(torch.nn, f"AdaptiveMaxPool{self.dims}d")
        super().__init__(P_x, layer(output_size, return_indices))

    def _pooled(self, x: Tensor, sizes: Shape, starts: Shape) -> tuple[Tensor, ...]:
        y, indices = MAX_POOL[self.dims](x, sizes, return_indices=True)
        if not self.return_indices:
            return (y,)
        at = tuple(line.hull[0] + start for line, start in zip(self._share.rows, starts, strict=True))
        return y, global_indices(indices, tuple(x.shape[2:]), at, self._extents)


class DistributedAdaptiveAvgPool2d(AdaptiveAvgPool):
    dims = 2


class DistributedAdaptiveAvgPool1d(AdaptiveAvgPool):
    dims = 1


class DistributedAdaptiveAvgPool3d(AdaptiveAvgPool):
    dims = 3


class DistributedAdaptiveMaxPool2d(AdaptiveMaxPool):
    dims = 2


class DistributedAdaptiveMaxPool1d(AdaptiveMaxPool):
    dims = 1


class DistributedAdaptiveMaxPool3d(AdaptiveMaxPool):
    dims = 3
