"""Layer norm and group norm over dims that may be cut.

    layer norm      a set = all elements of the normalised dims, at one place of the leading dims
    group norm      a set = the elements of one group of channels of one sample

`standardise` computes statistics and gradients. A group whose channels are spread over several workers is a set with
rows on each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import PartitionError
from ...operators.formats import memory_format_of
from ...partition import Partition
from ..engine.layer import Layer
from ..parameters.blocks import Sharding
from .norm_base import Norm, check_cut_like_parameters, without_bias
from .norm_functions import group_norm, layer_norm


class DistributedLayerNorm(Norm):
    """`torch.nn.LayerNorm` of tensors on `P_x`, any dim of which may be cut.

    Parameters
    ----------
    P_x : the partition of input and output
    normalized_shape, eps, elementwise_affine, bias, device, dtype : as in torch, for the last dims of the global tensor

    Shape
    -----
    - input, output: ``(*, *normalized_shape)``; this worker's block of it

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.DistributedLayerNorm(P_x, 2)(torch.tensor([[-1.0, 1.0]])).sign().detach()
    tensor([[-1.,  1.]])
    """

    _settings = ("eps",)
    _fixed = (*Layer._fixed, "normalized_shape")

    def __init__(
        self,
        P_x: Partition,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(int(n) for n in normalized_shape)
        self.P_x, self.normalized_shape, self.eps, self.elementwise_affine = P_x, shape, eps, elementwise_affine
        self._takes_part(P_x, signature=f"{shape}, eps={eps}, elementwise_affine={elementwise_affine}, bias={bias}")
        self._lead = P_x.dim - len(shape)

        def make(device: torch.device | str | None) -> torch.nn.Module:
            return torch.nn.LayerNorm(shape, eps, elementwise_affine, bias, device, dtype)

        def shardings(layer: torch.nn.Module) -> dict[str, Sharding]:
            over = Sharding(P_x.geometry, tuple(range(self._lead, P_x.dim)), shape)
            return {"weight": over, "bias": over}

        problem = f"normalises {len(shape)} dims, the partition has {P_x.dim} axes" if self._lead < 0 else None
        self._build(make, shardings, device, problem)

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        layout = self._agree(input[0])
        self._try_dtypes(
            lambda one: F.layer_norm(one(input[0], 2, 1), (1,), *(one(self._block(n), 1) for n in ("weight", "bias")))
        )
        for d, extent in enumerate(self.normalized_shape, start=self._lead):
            check_cut_like_parameters(self._title, layout, d, extent)
        self._sets = self._sets_over(layout, range(self._lead, layout.grid.dim), math.prod(self.normalized_shape))

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        return layer_norm(input, self._lead, *self._weight_and_bias(), self._normalisation())

    def _by_torch(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class DistributedGroupNorm(Norm):
    """`torch.nn.GroupNorm` of tensors ``(batch, channel, *space)`` on `P_x`; a group may span several workers.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    num_groups, num_channels, eps, affine, device, dtype, bias : as in torch, for the global tensor

    Shape
    -----
    - input, output: ``(batch, num_channels, *space)``; this worker's block of it

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> gridwise.nn.DistributedGroupNorm(P_x, 2, 4)(torch.ones(1, 4, 3)).abs().max() < 1e-6
    tensor(True)
    """

    _settings = ("eps", "num_groups")
    _fixed = (*Layer._fixed, "num_channels")

    def __init__(
        self,
        P_x: Partition,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.P_x, self.num_groups, self.num_channels = P_x, num_groups, num_channels
        self.eps, self.affine = eps, affine
        self._takes_part(P_x, signature=self.extra_repr())

        def make(device: torch.device | str | None) -> torch.nn.Module:
            layer = torch.nn.GroupNorm(num_groups, num_channels, eps, affine, device, dtype)
            return layer if bias else without_bias(layer)

        def shardings(layer: torch.nn.Module) -> dict[str, Sharding]:
            return dict.fromkeys(("weight", "bias"), Sharding(P_x.geometry, (1,), (num_channels,)))

        problem = f"needs a partition of at least 2 axes, got {P_x.shape}" if P_x.dim < 2 else None
        self._build(make, shardings, device, problem)

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        layout = self._agree(input[0])
        self._try_dtypes(
            lambda one: F.group_norm(one(input[0], 1, 2), 1, *(one(self._block(n), 2) for n in ("weight", "bias")))
        )
        if not isinstance(self.num_groups, int) or self.num_groups < 1 or self.num_channels % self.num_groups:
            raise PartitionError(
                f"{self._title}: `num_groups` (={self.num_groups}) must divide the {self.num_channels} channels."
            )
        check_cut_like_parameters(self._title, layout, 1, self.num_channels)
        block = layout.block(self.P_x.transport.rank)
        in_group = self.num_channels // self.num_groups
        self._sets = self._sets_over(layout, range(1, layout.grid.dim), in_group * math.prod(layout.global_shape[2:]))
        if self._sets.count * layout.global_shape[0] == 1:  # torch refuses this; it counts the samples too
            raise PartitionError(f"{self._title}: expected more than 1 value per group, got 1.")
        self._sets.in_groups(block, in_group, self.num_channels, input[0].device)

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        weight, bias = self._weight_and_bias()
        return group_norm(input, weight, bias, self._normalisation(weight, bias))

    def _by_torch(self, x: Tensor) -> Tensor:
        if x.is_contiguous():
            return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        # for channels last torch's kernel computes E[x^2] - E[x]^2
        y = F.group_norm(x.contiguous(), self.num_groups, self.weight, self.bias, self.eps)
        return y.contiguous(memory_format=memory_format_of(x))

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
