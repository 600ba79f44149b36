"""Batch norm over a grid of batch, channel and space: one mean and variance for each channel of the global tensor.

    y = w (x - mean) / sqrt(var + eps) + b          mean, var over all workers that hold a part of the channel

No activation is moved: forward and backward exchange a few numbers per channel (`standardise`). Along the channel axis
parameters and running statistics are cut like the input; along the others they are replicated.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError
from ...grid import Layout
from ...partition import Partition
from ..engine.agreement import agree_layout
from ..engine.carrier import HALVES
from ..engine.layer import Layer
from ..engine.operator import Ticket, apply
from ..parameters.blocks import Shared, Spread
from .standardise import Sets, standardise
from .sync_batchnorm import sync_batch_norm


class DistributedBatchNorm(Layer):
    """`torch.nn.BatchNorm1d`, `2d` or `3d` of tensors ``(batch, channel, *space)`` on `P_x`, in any number of dims.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    num_features, eps, momentum, affine, track_running_stats, device, dtype, bias : as in torch, for the global tensor

    Notes
    -----
    Running statistics equal those of torch: the variance of the batch enters them corrected by ``n / (n - 1)``. Sent per
    call: three numbers per channel and worker in forward (two, in two steps, over more than 8 workers), two in backward.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> gridwise.nn.DistributedBatchNorm(P_x, 3)(torch.ones(2, 3, 4)).abs().max() < 1e-6
    tensor(True)
    """

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _settings = ("eps", "momentum", "track_running_stats")
    _fixed = (*Layer._fixed, "num_features")
    dims: tuple[int, ...] = ()
    """How many dims the input may have; any from 2 on, if empty."""

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
        self.P_x, self.num_features, self.eps, self.momentum = P_x, num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._takes_part(P_x, signature=self.extra_repr())

        def make(device: torch.device | str | None) -> torch.nn.Module:
            layer = torch.nn.BatchNorm1d(num_features, eps, momentum, affine, track_running_stats, device, dtype)
            return layer if bias else without_bias(layer)

        def spreads(layer: torch.nn.Module) -> dict[str, Spread]:
            along_channels = Spread(P_x.grid, (1,), (num_features,))
            names = ("weight", "bias", "running_mean", "running_var")
            return {**dict.fromkeys(names, along_channels), "num_batches_tracked": Spread(P_x.grid, (), ())}

        self._build(make, spreads, device, self._problem_with_grid())

    def _problem_with_grid(self) -> str | None:
        dims = self.dims or range(2, 64)
        if self.P_x.dim not in dims:
            needed = " or ".join(map(str, self.dims)) or "at least 2"
            return f"needs a partition of {needed} axes (batch, channel, space), got {self.P_x.shape}"
        return None

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        assert self._transport is not None
        layout, agreed = agree_layout(self._transport, self._team, self._says, self.P_x.grid, input[0])
        check_cut_like_parameters(self._says, layout, 1, self.num_features)
        self._input_needs_grad = agreed.requires_grad
        mean, var, weight, bias = self.running_mean, self.running_var, self._block("weight"), self._block("bias")
        self._try_dtypes(
            lambda one: F.batch_norm(one(input[0], 2, 1), one(mean, 1), one(var, 1), one(weight, 1), one(bias, 1), True)
        )
        others = [axis for axis in range(layout.grid.dim) if axis != 1]
        members = tuple(sorted(layout.grid.team_along(self._transport.rank, others)))
        self._count = math.prod(n for d, n in enumerate(layout.global_shape) if d != 1)
        self._sets = Sets(self._transport, self._team, self._says, members, self._count)
        self._all_have_some = all(b > a for cuts in layout.cuts for a, b in pairwise(cuts))
        self._sharing = Shared(self._transport, members, f"parameters of {self._says}")

    def forward(self, x: Tensor) -> Tensor:
        if self._is_outside:
            return x.clone()
        if not self._uses_batch:
            weight, bias = self._weight_and_bias()
            if not x.numel():  # torch's backward of nothing divides by it; the parameters still take part in theirs
                along = (1, -1, *(1,) * (x.dim() - 2))
                y = x if weight is None else x * weight.view(along)
                return (y if bias is None else y + bias.view(along)).to(x.dtype)
            return F.batch_norm(x, self.running_mean, self.running_var, weight, bias, False, 0.0, self.eps)
        if self.training and self._count <= 1:
            raise PartitionError(
                f"{self._says}: expected more than 1 value per channel when training, the global input has {self._count}."
            )
        weight, bias = map(self._block, ("weight", "bias"))
        wants = any(p is not None and p.requires_grad for p in (weight, bias))
        records = torch.is_grad_enabled() and (wants or self._input_needs_grad)
        if x.is_cuda and self._all_have_some:
            return self._on_device(x, weight, bias, records)
        half = x.dtype in HALVES  # statistics and sums in float32
        values = x.float() if half else x
        weight, bias = (None if p is None else p.to(values.dtype) for p in (weight, bias))
        statistics = self._sets.moments(values)
        self._track(*statistics)
        y = standardise(
            values, weight, bias, statistics, self.eps, self._sets, self._ticket, records, shared=self._shared_value
        )
        return y.to(x.dtype)

    def _by_torch(self, x: Tensor) -> Tensor:
        if self.momentum is None:
            raise NotImplementedError
        tracks = self.training and self.track_running_stats and self.running_mean is not None
        mean, var = (self.running_mean, self.running_var) if tracks or not self.training else (None, None)
        y = F.batch_norm(x, mean, var, self.weight, self.bias, self._uses_batch, self.momentum, self.eps)
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return y

    def _on_device(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, records: bool) -> Tensor:
        """By torch's fused kernels: alone by those of batch norm, with others by those of its synchronised kind."""
        tracks = self.training and self.track_running_stats and self.running_mean is not None
        if tracks and self.momentum is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        fused = tracks and self.momentum is not None
        running = (self.running_mean, self.running_var, self.momentum or 0.0) if fused else (None, None, 0.0)
        if len(self._sets.members) == 1 and (fused or not tracks):
            weight, bias = (None if p is None else self._shared_value(p) for p in (weight, bias))
            return F.batch_norm(x, *running[:2], weight, bias, True, running[2], self.eps)
        y, mean, inverse = sync_batch_norm(
            x, weight, bias, running, self.eps, self._sets, self._ticket, records, self._shared_value
        )
        if tracks and not fused:
            self._track(mean, inverse**-2 - self.eps)
        return y

    def _problem_with_state(self, input: tuple) -> str | None:
        return super()._problem_with_state(input) or problem_with_half_of_statistics(self)

    @property
    def _uses_batch(self) -> bool:
        """Whether the statistics are those of the batch."""
        return self.training or self.running_mean is None

    def _shared_value(self, parameter: Tensor) -> Tensor:
        if len(self._sharing.team) == 1:
            return parameter
        return apply(parameter, self._sharing, Ticket(self._ticket.key + 3, self._ticket.call), True)

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Let the running statistics follow those of this batch."""
        if not (self.training and self.track_running_stats) or self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if momentum is None else momentum
        momentum = momentum or 0.0
        dtype, corrected = self.running_mean.dtype, var * (self._count / (self._count - 1))
        if mean.dtype != dtype:
            mean, corrected = mean.to(dtype), corrected.to(dtype)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(corrected, momentum)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class DistributedBatchNorm1d(DistributedBatchNorm):
    """`torch.nn.BatchNorm1d` of tensors ``(batch, channel)`` or ``(batch, channel, length)`` on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input, axes (batch, channel, length), or without the batch
    num_features, eps, momentum, affine, track_running_stats, bias : as in `torch.nn.BatchNorm1d`; statistics are over the grid
    device, dtype : of the parameters

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> gridwise.nn.DistributedBatchNorm1d(P_x, 3)(torch.ones(2, 3, 16)).shape
    torch.Size([2, 3, 16])
    """

    dims = (2, 3)


class DistributedBatchNorm2d(DistributedBatchNorm):
    """`torch.nn.BatchNorm2d` of tensors ``(batch, channel, height, width)`` on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input, axes (batch, channel, height, width), or without the batch
    num_features, eps, momentum, affine, track_running_stats, bias : as in `torch.nn.BatchNorm2d`; statistics are over the grid
    device, dtype : of the parameters

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedBatchNorm2d(P_x, 3)(torch.ones(2, 3, 16, 16)).shape
    torch.Size([2, 3, 16, 16])
    """

    dims = (4,)


class DistributedBatchNorm3d(DistributedBatchNorm):
    """`torch.nn.BatchNorm3d` of tensors ``(batch, channel, depth, height, width)`` on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input, axes (batch, channel, depth, height, width), or without the batch
    num_features, eps, momentum, affine, track_running_stats, bias : as in `torch.nn.BatchNorm3d`; statistics are over the grid
    device, dtype : of the parameters

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1, 1])
    >>> gridwise.nn.DistributedBatchNorm3d(P_x, 3)(torch.ones(2, 3, 8, 8, 8)).shape
    torch.Size([2, 3, 8, 8, 8])
    """

    dims = (5,)


def problem_with_half_of_statistics(layer: torch.nn.Module) -> str | None:
    """Torch takes both running statistics, or none; in training some of its kernels take one."""
    mean, var = (layer._buffers.get(name) is None for name in ("running_mean", "running_var"))
    return None if mean == var else "needs both `running_mean` and `running_var`, or none"


def without_bias(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer with no bias; an argument of torch's norms only in its later versions."""
    layer.register_parameter("bias", None)
    return layer


def check_cut_like_parameters(says: str, layout: Layout, dim: int, extent: int) -> None:
    """Raise unless dim `dim` of the input is that of the parameters, and cut where these are: evenly."""
    found = layout.global_shape[dim]
    if found != extent:
        raise PartitionError(f"{says} needs an extent of {extent} along dim {dim} of the global input, got {found}.")
    balanced = Layout.balanced(layout.grid, layout.global_shape).cuts[dim]
    if layout.cuts[dim] != balanced:
        raise PartitionError(
            f"{says} has its parameters in blocks {balanced}, the input is cut along dim {dim} at {layout.cuts[dim]}.\n"
            "  fix: Repartition the input to balanced blocks first."
        )
