"""The primitives as functions, for callers without a layer object.

Each call looks up the layer that an earlier call with equal arguments made, so that its plan is reused. The most recent
layers are kept on the transport and freed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from ..errors import PartitionError
from ..grid import Grid, whole_numbers
from ..partition import CartesianPartition, Partition, PartitionLike, as_partition, zero_volume_tensor
from .primitives.all_gather import AllGather
from .primitives.all_sum_reduce import AllSumReduce
from .primitives.base import Primitive
from .primitives.broadcast import Broadcast
from .primitives.halo_exchange import HaloExchange
from .primitives.reduce_scatter import ReduceScatter
from .primitives.repartition import Repartition
from .primitives.sum_reduce import SumReduce

LAYERS_KEPT = 64
"""How many layers are kept for the same workers; the least recently called is dropped first."""


def broadcast(
    x: Tensor, P_x: Partition, P_y: Partition, transpose_src: bool = False, transpose_dest: bool = False
) -> Tensor:
    """`Broadcast` as a function.

    Parameters
    ----------
    x : this worker's tensor; zero-volume on a worker that is no source
    P_x, P_y, transpose_src, transpose_dest : as in `Broadcast`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.functional.broadcast(torch.ones(2), P_x, P_x)
    tensor([1., 1.])
    """
    return _kept(Broadcast, P_x, P_y, transpose_src, transpose_dest)(x)


def sum_reduce(
    x: Tensor, P_x: Partition, P_y: Partition, transpose_src: bool = False, transpose_dest: bool = False
) -> Tensor:
    """`SumReduce` as a function.

    Parameters
    ----------
    x : this worker's summand
    P_x, P_y, transpose_src, transpose_dest : as in `SumReduce`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.functional.sum_reduce(torch.ones(2), P_x, P_x)
    tensor([1., 1.])
    """
    return _kept(SumReduce, P_x, P_y, transpose_src, transpose_dest)(x)


def all_sum_reduce(
    x: Tensor, P_x: Partition, axes_reduce: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
) -> Tensor:
    """`AllSumReduce` as a function.

    Parameters
    ----------
    x : this worker's summand
    P_x, axes_reduce, axes_keep : as in `AllSumReduce`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.functional.all_sum_reduce(torch.ones(2), P_x, axes_reduce=(0,))
    tensor([1., 1.])
    """
    return _kept(AllSumReduce, P_x, _tuple(axes_reduce), _tuple(axes_keep))(x)


def all_gather(x: Tensor, P_x: Partition, axes: Iterable[int]) -> Tensor:
    """`AllGather` as a function.

    Parameters
    ----------
    x : this worker's block
    P_x, axes : as in `AllGather`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.functional.all_gather(torch.ones(2), P_x, axes=(0,))
    tensor([1., 1.])
    """
    return _kept(AllGather, P_x, _tuple(axes))(x)


def reduce_scatter(x: Tensor, P_x: Partition, axes: Iterable[int]) -> Tensor:
    """`ReduceScatter` as a function.

    Parameters
    ----------
    x : this worker's summand
    P_x, axes : as in `ReduceScatter`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.functional.reduce_scatter(torch.ones(2), P_x, axes=(0,))
    tensor([1., 1.])
    """
    return _kept(ReduceScatter, P_x, _tuple(axes))(x)


def repartition(
    x: Tensor, P_x: Partition, P_y: Partition, cuts: Sequence[Sequence[int] | None] | None = None
) -> Tensor:
    """`Repartition` as a function.

    Parameters
    ----------
    x : this worker's block
    P_x, P_y, cuts : as in `Repartition`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.functional.repartition(torch.ones(2), P_x, P_x)
    tensor([1., 1.])
    """
    wish = None if cuts is None else tuple(_tuple(line) for line in cuts)
    return _kept(Repartition, P_x, P_y, True, wish)(x)


def halo_exchange(x: Tensor, P_x: Partition, halo_shape: Sequence[Sequence[int]]) -> Tensor:
    """`HaloExchange` as a function.

    Parameters
    ----------
    x : this worker's block
    P_x, halo_shape : as in `HaloExchange`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.functional.halo_exchange(torch.ones(2), P_x, [(1, 1)])
    tensor([1., 1.])
    """
    return _kept(HaloExchange, P_x, tuple(whole_numbers(pair, "halo_shape") for pair in halo_shape))(x)


def scatter(x: Tensor | None, P_x: PartitionLike, root: int = 0) -> Tensor:
    """Cut the tensor of worker `root` of the world into blocks on `P_x`; the adjoint of `gather`.

    Workers other than `root` pass None. The root need not be part of `P_x`.

    Parameters
    ----------
    x : the global tensor on worker `root`, None on the others
    P_x : the partition that gets its blocks, or the shape of a grid of all workers
    root : a worker of the world, in `P_x` or not

    Examples
    --------
    >>> gridwise.scatter(torch.ones(1, 2), (1, 1))
    tensor([[1., 1.]])
    """
    P_x = as_partition(P_x, "scatter")
    return _kept(Repartition, _alone(P_x, root), P_x, False)(zero_volume_tensor() if x is None else x)


def gather(x: Tensor, P_x: PartitionLike, root: int = 0) -> Tensor:
    """Assemble the blocks on `P_x` on worker `root` of the world; the others of `P_x` get a zero-volume tensor.

    Parameters
    ----------
    x : this worker's block
    P_x : the partition that holds the blocks, or the shape of a grid of all workers
    root : the worker of the world that gets the global tensor

    Examples
    --------
    >>> gridwise.gather(torch.ones(1, 2), (1, 1))
    tensor([[1., 1.]])
    """
    P_x = as_partition(P_x, "gather")
    return _kept(Repartition, P_x, _alone(P_x, root), False)(x)


def _alone(P_x: Partition, root: int) -> Partition:
    size = P_x.transport.size
    if root not in range(size):
        raise PartitionError(f"`root` (={root}) is no worker of the world: valid are 0 to {size - 1}.")
    return CartesianPartition(P_x.transport, Grid((int(root),), (1,) * P_x.dim))


def _kept(layer: Callable[..., Primitive], *args: Any) -> Primitive:
    """The layer with these arguments; kept per set of workers, all of which make the same calls."""
    ranks = tuple(arg.ranks for arg in args if isinstance(arg, Partition))
    kept = args[0].transport.cached_layers.setdefault(ranks, {})
    found = kept[layer, args] = kept.pop((layer, args), None) or layer(*args)
    if len(kept) > LAYERS_KEPT:
        del kept[next(iter(kept))]
    return found


def _tuple(values: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if values is None else whole_numbers(values, "axes")
