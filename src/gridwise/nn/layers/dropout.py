"""Dropout whose mask does not depend on the grid.

    y = x m / (1 - p),   m(i) = 0 with probability p, from the global index i alone (`random_numbers`)

A model has the same mask on one worker and, block by block, on any grid, so runs on different grids can be compared.
Channel dropout numbers the channels of the global batch. No tensor moves; per call the workers agree on one integer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from ...errors import PartitionError
from ...grid import Box, Layout
from ...operators.random.random_numbers import Key, keep_mask
from ...partition import Partition
from ..docstrings import LayerFamily
from ..engine.agreement import agree_layout
from ..engine.arguments import problem_with_tensor
from ..engine.grid_random import draw_key
from ..engine.module import Module


class DistributedDropout(LayerFamily, Module):
    """`torch.nn.Dropout` of tensors on `P_x`, with the same mask on every grid.

    Parameters
    ----------
    P_x : the partition of the input
    p, inplace : as in torch

    Shape
    -----
    - input, output: of any shape; this worker's block of it

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.DistributedDropout(P_x, p=0.0)(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    _layout: Layout
    _keeps_plans = True
    _settings = ("p", "inplace")
    _fixed = ("P_x",)

    def __init__(self, P_x: Partition, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        _check_probability(p)
        self.P_x, self.p, self.inplace = P_x, p, inplace
        self._takes_part(P_x, signature=f"p={p}")

    def _problem_with(self, input: tuple) -> str | None:
        return problem_with_tensor(input, dense=False)

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        _check_probability(self.p)
        self._layout, _ = agree_layout(self.P_x.transport, self._team, self._title, self.P_x.geometry, input[0])

    def _mode(self) -> Hashable:
        return self.training, super()._mode()

    def _mask_dims(self, dim: int) -> int:
        """How many leading dims the mask has; it is broadcast along the others."""
        return dim

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        key = draw_key(self.P_x.transport, self._team, self._title)
        if self._is_outside:
            return input.clone()
        return self._drop(input, self._kept(input, key))

    def _kept(self, x: Tensor, key: Key) -> Tensor:
        """The mask of kept elements, broadcastable to `x`."""
        block, shape, own = (
            self._layout.block(self.P_x.transport.rank),
            self._layout.global_shape,
            self._mask_dims(x.dim()),
        )
        keep = keep_mask(key, self.p, shape[:own], Box(block.start[:own], block.stop[:own]), x.device)
        return keep.view(*keep.shape, *(1,) * (x.dim() - own))

    def _drop(self, x: Tensor, keep: Tensor) -> Tensor:
        scaled = keep.to(x.dtype) * (1 / (1 - self.p) if self.p < 1 else 0.0)
        return x.mul_(scaled) if self.inplace else x * scaled

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise PartitionError(f"`p` (={p}) must be a probability, between 0 and 1.")


class _ChannelDropout(DistributedDropout):
    """`torch.nn.Dropout2d` of tensors ``(batch, channel, *space)`` on `P_x`: the mask covers batch and channels.

    Parameters
    ----------
    P_x : the partition of the input
    p, inplace : as in torch

    Shape
    -----
    - input, output: ``(batch, channel, *space)``; this worker's block of it

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedDropout2d(P_x, p=0.5).eval()(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 3, 8, 8])
    """

    space: int

    def _mask_dims(self, dim: int) -> int:
        return 1 if dim == self.space + 1 else 2

    def _problem_with(self, input: tuple) -> str | None:
        problem = super()._problem_with(input)
        if problem is None and (dims := input[0].dim()) not in (self.space + 1, self.space + 2):
            problem = f"needs a tensor of {self.space + 1} or {self.space + 2} dims, got {dims}"
        return problem


class DistributedDropout2d(_ChannelDropout):
    """`torch.nn.Dropout2d` of tensors ``(batch, channel, *space)`` on `P_x`; 3-D: ``(batch, channel, length)``."""

    space = 2

    def _mask_dims(self, dim: int) -> int:
        return 2  # torch treats three dims this way, with a warning that it may change


class DistributedDropout1d(_ChannelDropout):
    """`torch.nn.Dropout1d` of tensors ``(batch, channel, length)`` or ``(channel, length)`` on `P_x`."""

    space = 1


class DistributedDropout3d(_ChannelDropout):
    """`torch.nn.Dropout3d` of tensors ``(batch, channel, *space)`` or ``(channel, *space)`` on `P_x`."""

    space = 3


class DistributedAlphaDropout(DistributedDropout):
    """`torch.nn.AlphaDropout` of tensors on `P_x`: dropped elements take SELU's negative saturation value, and mean and
    variance are preserved.
    """

    def _drop(self, x: Tensor, keep: Tensor) -> Tensor:
        alpha = 1.7580993408473766
        if self.p == 1:
            return x.mul_(0) if self.inplace else x * 0
        a = 1 / math.sqrt((alpha * alpha * self.p + 1) * (1 - self.p))
        noise = keep.to(x.dtype)
        shift = (noise - 1) * (alpha * a) + alpha * a * self.p
        noise = noise * a
        return x.mul_(noise).add_(shift) if self.inplace else torch.addcmul(shift, x, noise)


class DistributedFeatureAlphaDropout(DistributedAlphaDropout):
    """`torch.nn.FeatureAlphaDropout` of tensors ``(batch, channel, ...)`` on `P_x`: drops whole channels."""

    def _mask_dims(self, dim: int) -> int:
        return min(2, dim)
