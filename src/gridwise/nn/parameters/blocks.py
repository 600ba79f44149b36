"""Parameters on a grid: this worker's block of the global parameter, who else holds it, and how its gradient is summed.

    holders   a grid of workers, say (batch, channel, space)
    axes      which of its axes cuts which dim of the parameter: for a convolution's weight, dim 0 along axis 1
    replicas  the workers that differ only along the other axes: they hold the same block

    forward   w_j = w          each worker has the block already: the identity, nothing is copied or sent
    adjoint   g   = sum_j g_j  the gradients of all replicas, summed, on each of them
    bytes     2 (p-1)/p of the block per worker and backward pass, p = number of replicas

The sum is a node of the graph and acts on the gradient of this backward pass, never on `.grad`: accumulation, retained
graphs and `autograd.grad` see complete gradients. A parameter and its gradient are *one* value with p copies: what
every one of them computes from them counts once, and the adjoint of the sum is again the identity.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, SupportsIndex, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import optimizer

from ...comm.messages.requests import Request
from ...comm.transports.base import Team, Transport
from ...grid import Box, Grid, Layout, Shape
from ...torch_internals.modes import no_torch_function
from ..engine.operator import Operator
from .gradient_wire import current_wire

holders_of_blocks: WeakKeyDictionary[torch.nn.Module, Transport] = WeakKeyDictionary()
"""The modules that hold parameters in blocks (`_shardings`): `clipping` looks up whose gradient a tensor is."""


@dataclass(frozen=True)
class Sharding:
    """How a parameter of `shape` is cut: dim d along axis ``axes[d]`` of the grid `holders`, or not at all for None."""

    holders: Grid
    axes: tuple[int | None, ...]
    shape: Shape

    @cached_property
    def layout(self) -> Layout:
        """The blocks on their owners, the first holder of each; one grid axis per dim of the parameter."""
        extents = [1 if axis is None else self.holders.shape[axis] for axis in self.axes]
        owners = []
        for index in product(*map(range, extents)):
            at = {axis: i for axis, i in zip(self.axes, index, strict=True) if axis is not None}
            owners.append(self.holders.rank_at([at.get(axis, 0) for axis in range(self.holders.dim)]))
        return Layout.balanced(Grid(tuple(owners), tuple(extents)), self.shape)

    def block(self, rank: int) -> Box | None:
        """The block of worker `rank`, in global indices; None if it holds none."""
        if rank not in self.holders:
            return None
        index = self.holders.index_of(rank)
        return self.layout.block_at(tuple(0 if axis is None else index[axis] for axis in self.axes))

    def replicas(self, rank: int) -> Team:
        """The workers that hold the same block as `rank`, itself included."""
        free = [axis for axis in range(self.holders.dim) if axis not in self.axes]
        return tuple(sorted(self.holders.team_along(rank, free)))

    def cut(self, value: Tensor, rank: int) -> Tensor:
        """This worker's block of the global `value`, zero-volume on a worker that holds none."""
        box = self.block(rank)
        if box is None:
            return value[:0] if value.dim() else value  # every worker holds a scalar, such as a count of batches
        return value[box.slices]

    def label(self, tensor: BlockTensor | BlockParameter, transport: Transport) -> None:
        """Record on the tensor which block it is. One that all workers of the world hold whole has no placement."""
        everywhere = self.layout.grid.size == 1 and self.holders.size == transport.size
        tensor.placement = None if everywhere else self.layout
        tensor.block = None if everywhere else self.block(transport.rank)
        tensor.sharding = self


class _Labelled(Tensor):
    """The label of a block: its place in the global tensor. Up to 0.1 `placement` was `layout`, a name of torch's."""

    placement: Layout | None = None
    block: Box | None = None
    sharding: Sharding | None = None
    """Who holds it, and how it is cut."""

    @property
    def layout(self) -> torch.layout:
        """Torch's memory layout, `torch.strided`."""
        return Tensor.layout.__get__(self)  # type: ignore[attr-defined]

    @layout.setter  # type: ignore[override]
    def layout(self, value: Layout | None) -> None:
        if value is not None and not isinstance(value, Layout):
            raise AttributeError(f"a tensor's layout (={self.layout}) cannot be set")
        warnings.warn("`.layout` of a block is now `.placement`: set that instead", DeprecationWarning, stacklevel=2)
        self.placement = value


class BlockTensor(_Labelled):
    """A tensor that knows which block of a global one it is: what `state_dict()` of a distributed layer holds.

    Attributes
    ----------
    placement : the blocks of the global tensor on their owners; None if every worker of the world holds all of it
    block : the part that this worker holds, in global indices; on a worker that is not in ``placement.grid`` it is a
        copy. None if there is no placement, or if the worker holds no part.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> layer = gridwise.nn.DistributedLinear(P_x, 3, 2)
    >>> isinstance(layer.state_dict()['weight'], torch.Tensor)
    True
    """

    __torch_function__ = no_torch_function

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict) -> BlockTensor:
        return memo.setdefault(id(self), labelled(self.detach().clone().as_subclass(BlockTensor), self))


class BlockParameter(_Labelled, torch.nn.Parameter):
    """A worker's block of a global parameter; `placement` and `block` as in `BlockTensor`, kept by `.to()` and `deepcopy`.

    Parameters
    ----------
    data : this worker's block
    requires_grad : as in `torch.nn.Parameter`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> weight = gridwise.nn.DistributedConv2d(P_x, 1, 4, kernel_size=3).weight
    >>> weight.shape, weight.placement
    (torch.Size([4, 1, 3, 3]), None)
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return torch.nn.Parameter(self.data, self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict) -> BlockParameter:
        return memo.setdefault(id(self), labelled(BlockParameter(self.data.clone(), self.requires_grad), self))


# On a device, torch's optimisers update parameters of these classes together in a few kernels, others one by one.
optimizer._foreach_supported_types.append(BlockParameter)

Labelled = TypeVar("Labelled", BlockTensor, BlockParameter)


def placement_of(x: object) -> Layout | None:
    """The placement of a block; None for anything else, and for what every worker of the world holds whole."""
    return x.placement if isinstance(x, BlockTensor | BlockParameter) else None


def is_cut(x: object) -> TypeGuard[BlockParameter]:
    """Whether a parameter lies in several blocks on different workers."""
    return isinstance(x, BlockParameter) and x.sharding is not None and x.sharding.layout.grid.size > 1


def sharding_over(value: Tensor, holders: Grid) -> Sharding:
    """How a value is cut; one that is not is whole on each of the `holders`."""
    if is_cut(value):
        assert value.sharding is not None
        return value.sharding
    return Sharding(holders, (None,) * value.dim(), tuple(value.shape))


def labelled(tensor: Labelled, like: BlockTensor | BlockParameter) -> Labelled:
    """`tensor` with the placement and the block of another."""
    tensor.placement, tensor.block, tensor.sharding = like.placement, like.block, like.sharding
    return tensor


class ReplicatedBlock(Operator):
    """A block of which all workers of a team hold a replica: the identity, whose adjoint is the sum over the team."""

    def __init__(self, transport: Transport, team: Team, name: str, wire: torch.dtype | None = None) -> None:
        super().__init__(transport, team, name)
        self.wire = wire
        """The dtype in which gradients are sent; None for their own."""

    @cached_property
    def adjoint(self) -> SummedGradient:
        return SummedGradient(self)

    def __call__(self, x: Tensor) -> Tensor:
        return x  # autograd makes an alias of it

    def with_current_wire(self) -> ReplicatedBlock:
        """The same operator, with the dtype that `gradient_wire` sets now."""
        wire = current_wire()
        if wire == self.wire:
            return self
        if wire not in self._others:
            self._others[wire] = ReplicatedBlock(self.transport, self.team, self.name, wire)
        return self._others[wire]

    @cached_property
    def _others(self) -> dict[torch.dtype | None, ReplicatedBlock]:
        return {}


class SummedGradient(Operator):
    """The adjoint of `ReplicatedBlock`."""

    def __init__(self, forth: ReplicatedBlock) -> None:
        super().__init__(forth.transport, forth.team, f"the gradient of {forth.name}")
        self.forth = forth

    @property
    def adjoint(self) -> ReplicatedBlock:
        return self.forth

    def __call__(self, gradient: Tensor) -> Tensor:
        if self.forth.wire is None:
            return self.transport.all_sum(gradient, self.team, self.name)
        total = gradient.clone(memory_format=torch.contiguous_format)
        self.begin(total).wait()
        return total

    def begin(self, gradient: Tensor) -> Request:
        """Start to replace the contiguous `gradient` by its sum over the team."""
        return self.transport.post_sum(gradient, self.team, self.name, self.forth.wire)


Make = Callable[[torch.device | str | None], torch.nn.Module]
"""Builds the sequential torch layer on a device."""
