"""DistDL's partitions: Gridwise's, with a communicator and with arrays for `shape` and `index`; a worker outside a
partition sees no size.

Creating one sends no messages, and workers outside know who is inside. `deactivate` takes this worker out. For a world
over the user's own communicator it also closes the transport, once no worker has a partition of it left.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gridwise.comm.agreement import largest
from gridwise.comm.transports.base import Transport
from gridwise.comm.transports.solo import SoloTransport
from gridwise.errors import PartitionError
from gridwise.grid import Grid, whole_numbers
from gridwise.partition import CartesianPartition, Partition, world

from .communicator import Communicator

try:
    from mpi4py import MPI as _MPI

    PROC_NULL, COMM_NULL, GROUP_NULL = _MPI.PROC_NULL, _MPI.COMM_NULL, _MPI.GROUP_NULL
except (ImportError, RuntimeError):  # no MPI: gloo
    _MPI = None  # type: ignore[assignment]
    PROC_NULL, COMM_NULL, GROUP_NULL = -1, None, None  # type: ignore[assignment]


class MPIPartition(Partition):
    """Some workers, in order.

    Parameters
    ----------
    comm : an mpi4py communicator; COMM_WORLD means the world that Gridwise finds, also under torchrun
    group, root : accepted for compatibility with DistDL, and ignored
    """

    _grid: Grid | None
    _comm: Any

    def __init__(self, comm: Any = COMM_NULL, group: Any = GROUP_NULL, root: Any = None) -> None:
        if comm is None or comm == COMM_NULL:
            self._set(_NOBODY, None, None)
            return
        is_whole = _is_world(comm)
        given = world() if is_whole else world(comm)
        self._set(given.transport, given.geometry, None if is_whole else given)
        if _MPI is not None and given.transport.name == "mpi" and comm.Get_size() == given.size:
            self._comm = comm

    def _set(self, transport: Transport, grid: Grid | None, opened: Partition | None) -> None:
        self.transport = transport
        self._grid, self._opened = grid, opened
        self.active = grid is not None and transport.rank in grid
        self._comm = Communicator(self._plain) if self.active else COMM_NULL
        self._group: Any = grid.ranks if self.active and grid is not None else GROUP_NULL
        self._root = transport
        _alive.setdefault(transport, weakref.WeakSet()).add(self)

    @property
    def geometry(self) -> Grid:  # type: ignore[override]
        if self._grid is None:
            raise PartitionError("this partition has no workers: no partition or layer can be made from it.")
        return self._grid

    @property
    def _plain(self) -> Partition:
        """The same workers as a Gridwise partition, whether or not this one is active."""
        return Partition(self.transport, self.geometry)

    @property
    def rank(self) -> int:
        return super().rank if self.active else PROC_NULL

    @property
    def size(self) -> int:
        return self.geometry.size if self.active else -1

    @property
    def shape(self) -> np.ndarray:  # type: ignore[override]
        return np.array([self.size])

    @property
    def dim(self) -> int:
        return 1

    @property
    def index(self) -> Any:
        return self.rank if self.active else None

    # Creating other partitions

    def create_partition_inclusive(self, ranks: Iterable[int]) -> MPIPartition:
        """The partition of the given workers; for an empty list, one that is active nowhere."""
        places = whole_numbers(np.atleast_1d(np.asarray(list(ranks), dtype=int)), "ranks")
        grid = self._plain.create_partition_inclusive(places).geometry if places else None
        return _made(MPIPartition, self.transport, grid)

    def create_partition_union(self, other: Partition) -> MPIPartition:
        """This partition's workers, then those of `other` that are not among them."""
        if self._grid is None or (isinstance(other, MPIPartition) and other._grid is None):
            filled = other if self._grid is None else self
            return _made(MPIPartition, filled.transport, Grid.line(filled.ranks))
        return _made(MPIPartition, self.transport, self._plain.create_partition_union(plain(other)).geometry)

    def create_cartesian_topology_partition(
        self, shape: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> MPICartesianPartition:
        """The same workers on a grid; along periodic axes the first and the last worker are neighbours."""
        extents = whole_numbers(np.atleast_1d(shape), "shape")
        periodic = tuple(map(bool, periods)) if periods is not None else (False,) * len(extents)
        if len(periodic) != len(extents):
            raise PartitionError(f"`periods` (={periodic}) needs an entry for each of {len(extents)} axes.")
        grid = self._plain.create_cartesian_topology_partition(extents).geometry if self._grid is not None else None
        return _made(MPICartesianPartition, self.transport, grid, extents, periodic)

    def create_broadcast_partition_to(
        self, P_dest: Partition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[MPIPartition, MPIPartition]:
        """(P_send, P_recv); the same object twice if both have the same workers."""
        return _pair(plain(self).create_broadcast_partition_to(plain(P_dest), transpose_src, transpose_dest))

    def create_reduction_partition_to(
        self, P_dest: Partition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[MPIPartition, MPIPartition]:
        """(P_send, P_recv); the same object twice if both have the same workers."""
        return _pair(plain(self).create_reduction_partition_to(plain(P_dest), transpose_src, transpose_dest))

    def create_allreduction_partition(self, axes_reduce: Iterable[int]) -> MPICartesianPartition:
        """The workers that differ from this one only along `axes_reduce`."""
        found = plain(self).create_allreduction_partition(np.atleast_1d(np.asarray(axes_reduce)).tolist())
        return _cartesian(found)

    # Deactivation and identity

    def deactivate(self) -> None:
        """Take this worker out of the partition."""
        opened, self._opened = self._opened, None
        if isinstance(self._comm, Communicator):
            self._comm.Free()
        self.active, self._comm, self._group = False, COMM_NULL, GROUP_NULL
        _alive[self.transport].discard(self)
        if opened is None or not opened.active:
            return
        if not any(largest(self.transport, opened.team, "deactivate", len(_alive[self.transport]))):
            opened.deactivate()

    def __eq__(self, other: object) -> bool:
        """Whether both have the same communicator; two partitions created from the same workers are not equal."""
        if not isinstance(other, MPIPartition) or not (self.active and other.active):
            return False
        return self is other or self._comm is other._comm

    def __hash__(self) -> int:
        return id(self)


class MPICartesianPartition(MPIPartition, CartesianPartition):
    """Workers on a Cartesian grid; workers outside know its shape too."""

    _extents: tuple[int, ...]
    _periodic: tuple[bool, ...]

    @property
    def _plain(self) -> CartesianPartition:
        return CartesianPartition(self.transport, self.geometry)

    @property
    def shape(self) -> np.ndarray:  # type: ignore[override]
        return np.array(self._extents, dtype=int)

    @property
    def dim(self) -> int:
        return len(self._extents)

    @property
    def index(self) -> Any:
        return np.array(self.geometry.index_of(self.transport.rank), dtype=int) if self.active else None

    def create_cartesian_subtopology_partition(self, remain_shape: Sequence[bool]) -> MPICartesianPartition:
        """This worker's slice of the grid: the axes marked True remain."""
        return _cartesian(self._plain.create_cartesian_subtopology_partition(list(remain_shape)))

    def cartesian_index(self, rank: int) -> np.ndarray:  # type: ignore[override]
        return np.array(self._plain.cartesian_index(rank), dtype=int)

    def neighbor_ranks(self, rank: int) -> Any:
        """For each axis, the neighbours before and after `rank`; PROC_NULL beyond the end of a non-periodic axis."""
        if not self.active:
            return None
        grid, at = self.geometry, self._plain.cartesian_index(rank)
        pairs = []
        for axis, (extent, periodic) in enumerate(zip(grid.shape, self._periodic, strict=True)):
            pair = []
            for step in (-1, 1):
                place = at[axis] + step
                inside = periodic or 0 <= place < extent
                there = (*at[:axis], place % extent, *at[axis + 1 :])
                pair.append(grid.place_of(grid.rank_at(there)) if inside else PROC_NULL)
            pairs.append((pair[0], pair[1]))
        return pairs


_NOBODY = SoloTransport()
"""Where a partition without workers is: the world may be unknown yet, and all its workers would have to join to find it."""
_alive: dict[Transport, weakref.WeakSet[MPIPartition]] = {}


def plain(partition: Partition) -> Partition:
    """Gridwise's own partition of the same workers, as its layers expect it."""
    if not isinstance(partition, MPIPartition):
        return partition
    same = partition._plain
    same.active = partition.active
    return same


def is_periodic(partition: Partition) -> tuple[bool, ...]:
    """For each axis, whether the partition is periodic along it."""
    return partition._periodic if isinstance(partition, MPICartesianPartition) else (False,) * partition.dim


def _is_world(comm: object) -> bool:
    return _MPI is not None and comm == _MPI.COMM_WORLD


def _made(cls: Any, transport: Transport, grid: Grid | None, *extents: Any) -> Any:
    made = cls.__new__(cls)
    if extents:
        made._extents, made._periodic = extents
    made._set(transport, grid, None)
    return made


def _cartesian(P: CartesianPartition) -> MPICartesianPartition:
    made: MPICartesianPartition = _made(
        MPICartesianPartition, P.transport, P.geometry, P.geometry.shape, (False,) * P.geometry.dim
    )
    if not P.active:
        made.deactivate()
    return made


def _pair(pair: tuple[Partition, Partition]) -> tuple[MPIPartition, MPIPartition]:
    if pair[0].active and pair[1].active and pair[0].ranks == pair[1].ranks:
        both = _made(MPIPartition, pair[0].transport, pair[0].geometry)
        return both, both
    return tuple(_made(MPIPartition, each.transport, each.geometry if each.active else None) for each in pair)
