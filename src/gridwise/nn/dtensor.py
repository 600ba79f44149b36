"""Convert torch's DTensor and DeviceMesh to blocks on a grid and back. Numbers stay on their workers: nothing is sent.

    DeviceMesh     workers on a grid whose axes have no meaning of their own
    DTensor        for each axis of a mesh, the dim that it cuts (`Shard`), or replicas along it (`Replicate`)
    Gridwise       axis i of the grid cuts dim i

    mesh (2, 3), placements (Shard(1), Shard(0))      the grid (3, 2) of the same workers
    mesh (2, 3), placements (Replicate(), Shard(0))   the grid (3, 1) of the first three; the others hold replicas

A DTensor is cut as by torch.chunk: all blocks are as long as the first until nothing is left. Gridwise allows any cuts,
and its balanced blocks differ by at most one row. The two agree wherever an extent is a multiple of the number of
blocks. Blocks that a DTensor cannot hold are refused, with the `cuts` for a `Repartition` to blocks that it can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import PartitionError, describe
from ..grid import Grid, Layout, chunked_cuts
from ..grid.grid import unravel
from ..partition import CartesianPartition, Partition, world
from .engine.agreement import agree_layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

MOST_NAMED = 16


def partition_from_mesh(mesh: DeviceMesh) -> CartesianPartition:
    """The workers of a torch DeviceMesh, on a grid of the same shape.

    Parameters
    ----------
    mesh : a mesh over workers of the default process group

    Examples
    --------
    >>> mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2))  # doctest: +SKIP
    >>> gridwise.partition_from_mesh(mesh).shape  # doctest: +SKIP
    (2, 2)
    """
    P_world = _world_of_torch("partition_from_mesh")
    return CartesianPartition(P_world.transport, _grid_of(mesh))


def mesh_from_partition(P: Partition, device_type: str = "cpu", names: Sequence[str] | None = None) -> DeviceMesh:
    """A torch DeviceMesh of the workers of `P`, in its shape. All workers of the world call it: torch makes groups.

    Parameters
    ----------
    names : the names of its axes, torch's `mesh_dim_names`

    Examples
    --------
    >>> mesh = gridwise.mesh_from_partition(P_x, names=["rows", "columns"])  # doctest: +SKIP
    """
    from torch.distributed.device_mesh import DeviceMesh

    _world_of_torch("mesh_from_partition", P)
    ranks = torch.tensor(P.ranks, dtype=torch.int, device="cpu").reshape(P.shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=None if names is None else tuple(names))


def from_dtensor(x: DTensor) -> tuple[Tensor, CartesianPartition]:
    """This worker's block of a DTensor, and the partition on which the blocks form one tensor for Gridwise's layers.

    Where the DTensor is replicated (`Replicate`), the first replica is taken, and workers with another one get a
    zero-volume tensor. Gradients flow back to the DTensor; where it is replicated they are `Partial` sums.

    Parameters
    ----------
    x : the DTensor, whose placements are `Shard` and `Replicate` only

    Examples
    --------
    >>> x, P_x = gridwise.from_dtensor(dtensor)  # doctest: +SKIP
    >>> gridwise.nn.DistributedConv2d(P_x, 3, 8, kernel_size=3)(x)  # doctest: +SKIP
    """
    from torch.distributed.tensor import Partial

    P_world = _world_of_torch("from_dtensor")
    layout = layout_of_dtensor(x)
    P_x = CartesianPartition(P_world.transport, layout.grid)
    local = x.to_local(grad_placements=[Partial() if how.is_replicate() else how for how in x.placements])
    return (local if P_x.active else local.reshape(-1)[:0]), P_x


def to_dtensor(
    x: Tensor, P_x: Partition, mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None
) -> DTensor:
    """The DTensor whose blocks are those of `x` on `P_x`. All workers of the world call it.

    Parameters
    ----------
    mesh : a mesh of the workers of `P_x`; default: `mesh_from_partition(P_x)`, which creates groups at each call
    placements : which dim each axis of the mesh cuts; default: axis i cuts dim i

    Raises
    ------
    PartitionError : the blocks are not those of a DTensor; the message lists them, and gives the `cuts` for a
        `gridwise.nn.Repartition` to those of a DTensor

    Examples
    --------
    >>> y = gridwise.to_dtensor(layer(x), P_x)  # doctest: +SKIP
    """
    from torch.distributed.tensor import DTensor, Shard

    P_world = _world_of_torch("to_dtensor", P_x)
    layout, agreed = agree_layout(P_x.transport, P_world.team, "to_dtensor", P_x.geometry, x)
    target = mesh_from_partition(P_x, agreed.device.type) if mesh is None else mesh
    how = tuple(placements) if placements is not None else tuple(Shard(axis) for axis in range(_grid_of(target).dim))
    wanted = _layout(_grid_of(target), how, layout.global_shape, "to_dtensor")
    if wanted.grid != layout.grid:
        raise PartitionError(
            "to_dtensor: the mesh and its placements put blocks on other workers than `P_x` does.",
            [f"P_x: {_words(layout.grid)}", f"the mesh, with {how}: {_words(wanted.grid)}"],
            "mesh_from_partition(P_x), or a Repartition to the workers of the mesh before.",
        )
    if wanted.cuts != layout.cuts:
        raise PartitionError(_uneven(layout, wanted))
    shape = torch.Size(layout.global_shape)
    stride = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    local = agreed.convert(x).contiguous()
    return DTensor.from_local(local, target, how, run_check=False, shape=shape, stride=stride)


def layout_of_dtensor(x: DTensor) -> Layout:
    """Which worker holds which block of a DTensor; of replicas, the first."""
    return _layout(_grid_of(x.device_mesh), tuple(x.placements), tuple(x.shape), "from_dtensor")


def _layout(mesh: Grid, placements: tuple[Any, ...], shape: tuple[int, ...], what: str) -> Layout:
    if len(placements) != mesh.dim:
        raise PartitionError(f"{what}: {len(placements)} placements for a mesh of {mesh.dim} axes, {mesh.shape}.")
    axes: list[list[int]] = [[] for _ in shape]
    for axis, how in enumerate(placements):
        if type(how).__name__ == "Shard" and -len(shape) <= how.dim < len(shape):
            axes[how.dim].append(axis)
        elif not how.is_replicate():
            raise PartitionError(
                f"{what}: {how} of axis {axis} is no block of a tensor of {len(shape)} dims.",
                fix="redistribute the DTensor to Shard or Replicate before.",
            )
    extents = [[mesh.shape[axis] for axis in line] for line in axes]
    ranks = []
    for index in product(*(range(math.prod(line)) for line in extents)):
        at = [0] * mesh.dim
        for place, line, sizes in zip(index, axes, extents, strict=True):
            for axis, coordinate in zip(line, unravel(place, tuple(sizes)), strict=True):
                at[axis] = coordinate
        ranks.append(mesh.rank_at(at))
    grid = Grid(tuple(ranks), tuple(math.prod(line) for line in extents))
    return Layout(grid, tuple(chunked_cuts(n, line) for n, line in zip(shape, extents, strict=True)))


def _grid_of(mesh: DeviceMesh) -> Grid:
    return Grid(tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh.shape))


def _uneven(layout: Layout, wanted: Layout) -> str:
    blocks = [(rank, box, wanted.block(rank)) for rank, box in layout.blocks()]
    other = [(rank, box, due) for rank, box, due in blocks if box != due]
    lines = [
        f"worker {rank}: {list(box.start)} to {list(box.stop)}, a DTensor has {list(due.start)} to {list(due.stop)}"
        for rank, box, due in other[:MOST_NAMED]
    ]
    if len(other) > MOST_NAMED:
        lines.append(f"... and {len(other) - MOST_NAMED} more workers")
    cuts = [list(line) for line in wanted.cuts]
    return describe(
        f"to_dtensor: a tensor of shape {layout.global_shape} lies in blocks that a DTensor cannot hold: it cuts each dim "
        "as torch.chunk does.",
        lines,
        f"gridwise.nn.Repartition(P_x, P_x, cuts={cuts}) before.",
    )


def _words(grid: Grid) -> str:
    return f"workers {grid.ranks[:MOST_NAMED]}{', ...' * (grid.size > MOST_NAMED)} as a grid {grid.shape}"


def _world_of_torch(what: str, P: Partition | None = None) -> Partition:
    """The world; raises unless its workers are the ranks of torch.distributed, to which a mesh refers."""
    P_world = world(P.transport) if P is not None else world()
    mine = P_world.transport.rank, P_world.transport.size
    torchs = (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else None
    if torchs != mine:
        known = f"worker {torchs[0]} of {torchs[1]}" if torchs else "not started"
        raise PartitionError(
            f"{what}: a DeviceMesh counts ranks of torch.distributed, which is {known} here, while Gridwise's world over "
            f"{P_world.transport.name} has this as worker {mine[0]} of {mine[1]}.",
            fix="start the job by torchrun, or `gridwise run --transport gloo`.",
        )
    return P_world
