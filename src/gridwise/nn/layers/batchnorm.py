"""Batch norm on a batch x channel x space grid: one mean and variance for each channel of the global tensor.

    y = w (x - mean) / sqrt(var + eps) + b          mean, var over all workers that hold a part of the channel

No activations move: forward and backward exchange a few numbers per channel (`standardise`). Parameters and running
statistics are cut like the input along the channel axis, and replicated along the others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError
from ...partition import Partition
from ..docstrings import documented_like
from ..engine.operator import CallId, apply
from ..parameters.blocks import ReplicatedBlock
from .norm_base import Norm, check_cut_like_parameters
from .norm_functions import batch_norm, by_running
from .standardise import Running


class DistributedBatchNorm(Norm):
    """`torch.nn.BatchNorm1d`, `2d` or `3d` of tensors ``(batch, channel, *space)`` on `P_x`, in any number of dims.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    num_features, eps, momentum, affine, track_running_stats, device, dtype, bias : as in torch, for the global tensor

    Shape
    -----
    - input, output: ``(batch, num_features, *space)``; this worker's block of it

    Notes
    -----
    Running statistics equal those of torch: the variance of the batch is corrected by ``n / (n - 1)``. Sent per call:
    three numbers per channel and worker in forward (above 32 workers two, in two steps), two in backward.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> gridwise.nn.DistributedBatchNorm(P_x, 3)(torch.ones(2, 3, 4)).abs().max() < 1e-6
    tensor(True)
    """

    sequential = torch.nn.BatchNorm1d
    _fixed = (*Norm._fixed, "num_features")
    _settings = ("eps", "momentum", "track_running_stats")
    dims: tuple[int, ...] = ()
    """The numbers of dims that the input may have; empty for any from 2 on."""

    def __init__(
        self,
        P_x: Partition,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._build_channels(P_x, num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def _problem_with_grid(self) -> str | None:
        dims = self.dims or range(2, 64)
        if self.P_x.dim not in dims:
            needed = " or ".join(map(str, self.dims)) or "at least 2"
            return f"needs a partition of {needed} axes (batch, channel, space), got {self.P_x.shape}"
        return None

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        layout = self._agree(input[0])
        check_cut_like_parameters(self._title, layout, 1, self.num_features)
        mean, var, weight, bias = self.running_mean, self.running_var, self._block("weight"), self._block("bias")
        self._try_dtypes(
            lambda one: F.batch_norm(one(input[0], 2, 1), one(mean, 1), one(var, 1), one(weight, 1), one(bias, 1), True)
        )
        count = math.prod(n for d, n in enumerate(layout.global_shape) if d != 1)
        if count <= 1 and self._uses_batch:
            raise PartitionError(
                f"{self._title}: expected more than 1 value per channel when training, the global input has {count}."
            )
        axes = [axis for axis in range(layout.grid.dim) if axis != 1]
        self._sets = self._sets_over(layout, axes, count).of_channels(layout)
        self._is_filled = layout.is_filled
        self._sharing = ReplicatedBlock(self.P_x.transport, self._sets.members, f"parameters of {self._title}")

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        if not self._uses_batch:
            return by_running(input, *self._weight_and_bias(), self.running_mean, self.running_var, self.eps)
        weight, bias = map(self._block, ("weight", "bias"))
        how = self._normalisation(weight, bias, shared=self._replicated_value)
        return batch_norm(input, weight, bias, self._running(), how, self._is_filled)

    @property
    def _is_torchs_own(self) -> bool:
        return self.momentum is not None

    def _by_torch(self, x: Tensor) -> Tensor:
        mean, var, momentum, _ = self._running() if self._uses_batch else Running(self.running_mean, self.running_var)
        return F.batch_norm(x, mean, var, self.weight, self.bias, self._uses_batch, momentum, self.eps)

    @property
    def _uses_batch(self) -> bool:
        """Whether to normalise by the statistics of the batch, rather than the running ones."""
        return self.training or self.running_mean is None

    def _replicated_value(self, parameter: Tensor) -> Tensor:
        if len(self._sharing.team) == 1:
            return parameter
        return apply(
            parameter, self._sharing.with_current_wire(), CallId(self._call_id.key + 3, self._call_id.call), True
        )

    def _running(self) -> Running:
        """Count this batch and return the running statistics to update; none if they are not tracked."""
        if not (self.training and self.track_running_stats) or self.running_mean is None:
            return Running()
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if momentum is None else momentum
        return Running(self.running_mean, self.running_var, momentum or 0.0)


@documented_like(DistributedBatchNorm)
class DistributedBatchNorm2d(DistributedBatchNorm):
    """`torch.nn.BatchNorm2d` of tensors ``(batch, channel, height, width)`` on `P_x`.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedBatchNorm2d(P_x, 3)(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 3, 8, 8])
    """

    dims = (4,)


@documented_like(DistributedBatchNorm2d)
class DistributedBatchNorm1d(DistributedBatchNorm):
    """`torch.nn.BatchNorm1d` of tensors ``(batch, channel)`` or ``(batch, channel, length)`` on `P_x`."""

    dims = (2, 3)


@documented_like(DistributedBatchNorm2d)
class DistributedBatchNorm3d(DistributedBatchNorm):
    dims = (5,)
