"""Every primitive through the one contract, on grids that are even, uneven, have empty blocks and inactive workers."""

from __future__ import annotations

import gridwise
from gridwise import nn
from gridwise.grid import Grid, Layout
from gridwise.nn import functional as F
from gridwise.testing import PrimitiveContract, workers


def on_grid(*shape: int, workers: range | None = None) -> gridwise.CartesianPartition:
    world = gridwise.world()
    return world.create_partition_inclusive(workers or range(world.size)).create_cartesian_topology_partition(shape)


def size() -> int:
    return gridwise.world().size


def balanced(P: gridwise.Partition, *shape: int) -> tuple[int, ...] | None:
    if not P.active:
        return None
    return Layout.balanced(P.geometry, shape).block(P.transport.rank).shape


@workers(1, 2, 3, 4)
class TestAllSumReduce(PrimitiveContract):
    def layer(self):
        return nn.AllSumReduce(on_grid(1, size()), axes_reduce=(1,))

    def block(self):
        return (3, 4)


@workers(4)
class TestAllSumReduceOverTeams(PrimitiveContract):
    def layer(self):
        return nn.AllSumReduce(on_grid(2, 2), axes_keep=(0,))

    def block(self):
        return (2 + on_grid(2, 2).index[0],)


@workers(2, 4)
class TestAllSumReduceWithoutTopologyAndWithAnInactiveWorker(PrimitiveContract):
    def layer(self):
        return nn.AllSumReduce(gridwise.world().create_partition_inclusive(range(1, size())), (0,))

    def block(self):
        return (5,) if gridwise.world().rank else None


@workers(1, 2, 3, 4)
class TestBroadcast(PrimitiveContract):
    def layer(self):
        return nn.Broadcast(on_grid(1, 1, workers=range(size() - 1, size())), on_grid(1, size()))

    def block(self):
        return (2, 3) if gridwise.world().rank == size() - 1 else None


@workers(4)
class TestBroadcastAlongOneAxis(PrimitiveContract):
    def layer(self):
        return nn.Broadcast(on_grid(1, 2, workers=range(1, 3)), on_grid(2, 2))

    def block(self):
        return {1: (2, 3), 2: (4, 1)}.get(gridwise.world().rank)


@workers(4)
class TestBroadcastTransposed(PrimitiveContract):
    def layer(self):
        return nn.Broadcast(on_grid(2, 1, workers=range(2)), on_grid(2, 2), transpose_src=True)

    def block(self):
        return {0: (2, 3), 1: (2, 1)}.get(gridwise.world().rank)


@workers(1, 2, 3, 4)
class TestSumReduce(PrimitiveContract):
    def layer(self):
        return nn.SumReduce(on_grid(size(), 1), on_grid(1, 1, workers=range(1)))

    def block(self):
        return (3, 2)


@workers(4)
class TestSumReduceToOtherWorkers(PrimitiveContract):
    def layer(self):
        return nn.SumReduce(on_grid(2, 1, workers=range(2)), on_grid(1, workers=range(3, 4)), preserve_batch=False)

    def block(self):
        return (3, 2) if gridwise.world().rank < 2 else None


@workers(1, 2, 3, 4)
class TestAllGather(PrimitiveContract):
    def layer(self):
        return nn.AllGather(on_grid(1, size()), axes=(1,))

    def block(self):
        return balanced(on_grid(1, size()), 3, 7)


@workers(4)
class TestAllGatherOverTeamsWithAnEmptyBlock(PrimitiveContract):
    def layer(self):
        return nn.AllGather(on_grid(2, 2), axes=(-1,))

    def block(self):
        return balanced(on_grid(2, 2), 3, 1)


@workers(1, 2, 3, 4)
class TestReduceScatter(PrimitiveContract):
    def layer(self):
        return nn.ReduceScatter(on_grid(size(), 1), axes=(0,))

    def block(self):
        return (5, 2)


@workers(1, 2, 3, 4)
class TestRepartition(PrimitiveContract):
    def layer(self):
        return nn.Repartition(on_grid(size(), 1), on_grid(1, size()))

    def block(self):
        return balanced(on_grid(size(), 1), 5, 7)


@workers(3, 4)
class TestRepartitionToOtherCutsAndWorkers(PrimitiveContract):
    def layer(self):
        P_x, P_y = on_grid(2, 1, workers=range(2)), on_grid(1, 2, workers=range(1, 3))
        return nn.Repartition(P_x, P_y, cuts=[None, (0, 1, 6)])

    def block(self):
        return {0: (0, 6), 1: (4, 6)}.get(gridwise.world().rank)


@workers(2, 4)
class TestRepartitionOfADimOfOne(PrimitiveContract):
    def layer(self):
        return nn.Repartition(on_grid(size(), 1), on_grid(1, size()))

    def block(self):
        return balanced(on_grid(size(), 1), 3, 1)


@workers(1, 2, 3, 4)
class TestHaloExchange(PrimitiveContract):
    def layer(self):
        return nn.HaloExchange(on_grid(1, size(), 1), [(0, 0), (2, 1), (0, 0)])

    def block(self):
        return balanced(on_grid(1, size(), 1), 2, 9, 3)


@workers(4)
class TestHaloExchangeWiderThanANeighbourWithCorners(PrimitiveContract):
    def layer(self):
        return nn.HaloExchange(on_grid(2, 2), [(3, 1), (1, 4)])

    def block(self):
        return balanced(on_grid(2, 2), 3, 7)


@workers(1, 2, 4)
class TestScatter(PrimitiveContract):
    def layer(self):
        root = Grid((size() - 1,), (1, 1))
        P_root = gridwise.CartesianPartition(gridwise.world().transport, root)
        layer = nn.Repartition(P_root, on_grid(1, size()), preserve_batch=False)
        assert type(F._kept(nn.Repartition, P_root, on_grid(1, size()), False)) is type(layer)
        return layer

    def block(self):
        return (3, 5) if gridwise.world().rank == size() - 1 else None
