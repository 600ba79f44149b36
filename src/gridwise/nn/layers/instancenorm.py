"""Instance norm on a batch x channel x space grid: one mean and variance for each sample and channel.

    y = w (x - mean) / sqrt(var + eps) + b          mean, var over all workers that hold a part of the sample's channel

A row of `standardise` is one channel of one sample. Running statistics are updated by the mean over the samples, which
takes one more sum along the batch axis, of two numbers per channel.
"""

from __future__ import annotations

import math
import warnings
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError
from ...grid import Grid
from ...partition import Partition
from ..docstrings import documented_like
from ..engine.agreement import agree_layout, agree_unbatched
from ..engine.copy_and_sum import AllSum
from .norm_base import Norm, check_cut_like_parameters
from .norm_functions import by_running, instance_norm, of_nothing
from .standardise import Running


class InstanceNorm(Norm):
    """The common base of instance norms."""

    dims: ClassVar[int]
    """The number of space dims, after batch and channel."""
    sequential = torch.nn.InstanceNorm1d
    _fixed = (*Norm._fixed, "num_features")
    _settings = ("eps", "momentum", "affine", "track_running_stats")
    _unbatched = False

    def __init__(
        self,
        P_x: Partition,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._build_channels(P_x, num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    # Planning

    def _grid_with_batch(self) -> Grid:
        return Grid(self.P_x.ranks, (1, *self.P_x.shape)) if self.P_x.dim == self.dims + 1 else self.P_x.geometry

    def _problem_with_grid(self) -> str | None:
        if self.P_x.dim in (self.dims + 1, self.dims + 2):
            return None
        axes = f"{self.dims + 2} axes (batch, channel, space), or {self.dims + 1} without the batch"
        return f"needs a partition of {axes}, got {self.P_x.shape}"

    def _problem_with(self, input: tuple) -> str | None:
        if problem := super()._problem_with(input):
            return problem
        x = input[0]
        if not x.is_floating_point():
            return f"normalises floating-point tensors only, got {x.dtype}"
        if x.dim() not in (self.dims + 1, self.dims + 2):
            return f"needs a block of {self.dims + 2} dims, or {self.dims + 1} without the batch, got {tuple(x.shape)}"
        if x.dim() == self.dims + 1 and self._grid.shape[0] > 1:
            return (
                f"got a block of shape {tuple(x.shape)} without a batch, but the grid cuts the batch: {self.P_x.shape}"
            )
        return None

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        transport, x = self.P_x.transport, input[0]
        self._unbatched = agree_unbatched(transport, self._team, self._title, x.dim() == self.dims + 1)
        layout, self._agreed = agree_layout(
            transport, self._team, self._title, self._grid, x.unsqueeze(0) if self._unbatched else x
        )
        channels = layout.global_shape[1]
        values = tuple(map(self._block, ("weight", "bias")))
        self._try_dtypes(lambda one: F.instance_norm(one(x, 1, 1, 2), None, None, *(one(value, 1) for value in values)))
        if self.affine or any(value is not None for value in (*values, self.running_mean)):
            check_cut_like_parameters(self._title, layout, 1, self.num_features)
        elif channels != self.num_features:
            warnings.warn(
                f"{self._title}: the global input has {channels} channels, not {self.num_features}; without `affine` "
                "that number is not used.",
                stacklevel=2,
            )
        self._samples = layout.global_shape[0]
        self._sets = self._sets_over(layout, range(2, layout.grid.dim), math.prod(layout.global_shape[2:]))
        along_batch = tuple(sorted(layout.grid.team_along(transport.rank, (0,))))
        self._over_samples = AllSum(transport, self._team, f"the running statistics of {self._title}", along_batch)

    def _problem_with_state(self, input: tuple) -> str | None:
        if self.track_running_stats and not self.training and self.running_mean is None:
            return "has no running statistics to normalise by, in eval() with `track_running_stats` (=True)"
        return super()._problem_with_state(input)

    # Calling

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        y = input.unsqueeze(0) if self._unbatched else input
        uses_batch = self.training or not self.track_running_stats or self.running_mean is None
        parameters = self._weight_and_bias()
        if uses_batch:
            y = self._by_batch(y, *parameters)
        else:
            y = by_running(y, *parameters, self.running_mean, self.running_var, self.eps)
        return y.squeeze(0) if self._unbatched else y

    def _by_batch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """`x` normalised by the statistics of each sample and channel; updates the running statistics."""
        if self._sets.count == 1:
            raise PartitionError(f"{self._title}: expected more than 1 spatial element when training, got 1.")
        if not self._samples * self._sets.count:
            return of_nothing(x, weight, bias)
        running = Running(self.running_mean, self.running_var, self.momentum or 0.0)
        how = self._normalisation(weight, bias)
        return instance_norm(x, weight, bias, running, how, self._over_samples, self._samples)


class DistributedInstanceNorm2d(InstanceNorm):
    """`torch.nn.InstanceNorm2d` of tensors ``(batch, channel, height, width)`` on `P_x`, or without the batch.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    num_features, eps, momentum, affine, track_running_stats, device, dtype, bias : as in torch, for the global tensor

    Shape
    -----
    - input, output: ``(batch, num_features, height, width)``, or without the batch; this worker's block of it

    Notes
    -----
    No activations move: forward and backward exchange a few numbers per sample and channel (`standardise`).

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedInstanceNorm2d(P_x, 3)(torch.ones(2, 3, 4, 4)).abs().max() < 1e-6
    tensor(True)
    """

    dims = 2


@documented_like(DistributedInstanceNorm2d)
class DistributedInstanceNorm1d(InstanceNorm):
    dims = 1


@documented_like(DistributedInstanceNorm2d)
class DistributedInstanceNorm3d(InstanceNorm):
    dims = 3
