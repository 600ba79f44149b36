"""Partitions: a grid of workers, the transport between them, and this worker's place on the grid.

    P_x = gridwise.world().grid(1, 1, 2, 2)        all workers; P_x: the partition of a tensor x
    P_y = gridwise.world().create_partition_inclusive([0, 1]).grid(1, 1, 2, 1)

A partition is a value. Making one sends nothing, so there is nothing to free: the transport creates a group at its first
use and shares it between all partitions of the same workers. Every worker can make every partition; on workers outside
it, the partition is inactive, but still knows its members and its shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from .comm import settings
from .comm.agreement import check_same_call
from .comm.launching.find import current
from .comm.launching.user_transports import transport_over, user_transports
from .comm.messages.arrays import gathered_arrays
from .comm.transports.base import Team, Transport
from .errors import PartitionError
from .grid import Copies, Grid, Index, Layout, resolve_axes, whole_numbers
from .grid.grid import unravel
from .html import escape

NOBODY = -1
"""The rank of a worker in a partition that it does not belong to, and of a neighbour beyond the edge."""


class Partition:
    """An ordered set of workers of the world, as seen from this one.

    Parameters
    ----------
    transport : the connection to the other workers
    geometry : the workers and their arrangement; use `gridwise.world()` and the methods below to make a partition

    Attributes
    ----------
    active : whether this worker belongs to the partition
    rank : its place in the partition, -1 if it is not active
    size, shape, dim : of the grid, the same on every worker
    index : this worker's coordinates, None if it is not active
    ranks : the workers, as ranks of the world
    geometry : the workers and their arrangement, as a `gridwise.grid.Grid`

    Examples
    --------
    >>> P_world = gridwise.world()
    >>> P_x = P_world.create_partition_inclusive([0])
    >>> P_x.active, P_x.size, P_x.index
    (True, 1, (0,))
    """

    def __init__(self, transport: Transport, geometry: Grid) -> None:
        self.transport = transport
        self.geometry = geometry
        self.active = self._includes_me = transport.rank in geometry

    @property
    def rank(self) -> int:
        return self.geometry.place_of(self.transport.rank) if self.active else NOBODY

    @property
    def size(self) -> int:
        return self.geometry.size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.geometry.shape

    @property
    def dim(self) -> int:
        return self.geometry.dim

    @property
    def index(self) -> Index | None:
        return self.geometry.index_of(self.transport.rank) if self.active else None

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.geometry.ranks

    @property
    def team(self) -> Team:
        """The workers in the transport's order."""
        return self.geometry.members

    # Making other partitions

    def grid(self, *shape: int) -> CartesianPartition:
        """The same workers on a grid of this shape, in row-major order: ``gridwise.world().grid(1, 1, 2, 2)``.

        It has an axis for each dim of a tensor, and the extent of an axis says into how many parts the dim is cut. The
        product of the extents is the number of workers. Without a shape it is the grid that the job was started on:
        ``gridwise run --grids 1x1x2x2 script.py``, or the environment variable GRIDWISE_GRID.

        Examples
        --------
        >>> gridwise.world().grid(1, 1).shape
        (1, 1)
        """
        return self.create_cartesian_topology_partition(shape or settings.grid(self.size))

    def create_partition_inclusive(self, ranks: Iterable[int]) -> Partition:
        """The partition of the given workers, in that order; `ranks` are ranks within this partition."""
        places = whole_numbers(ranks, "ranks")
        wrong = [place for place in places if not 0 <= place < self.size]
        if wrong or not places:
            raise PartitionError(
                f"`ranks` (={places}) must name workers 0 to {self.size - 1} of {self}"
                + (f", there is no worker {wrong[0]}." if wrong else ", and at least one.")
            )
        return Partition(self.transport, Grid.line(self.ranks[place] for place in places))

    def create_partition_union(self, other: Partition) -> Partition:
        """This partition's workers, followed by those of `other` that are not among them."""
        if other.transport is not self.transport:
            raise PartitionError(f"{self} and {other} come from different worlds: there is no union of them.")
        return Partition(self.transport, Grid.line(dict.fromkeys((*self.ranks, *other.ranks))))

    def create_cartesian_topology_partition(self, shape: Sequence[int]) -> CartesianPartition:
        """The same workers on a Cartesian grid, in row-major order; the product of `shape` must equal their number."""
        extents = whole_numbers(shape, "shape")
        places = math.prod(extents)
        if places != self.size == self.transport.size and min(extents, default=1) > 0:
            raise PartitionError(
                f"a grid of shape {extents} has {places} places, but there {_are(self.size)} in this world.",
                fix=f"start {places}: `gridwise run -n {places} script.py`, or "
                f"`gridwise.launch(function, workers={places})`; or choose a shape whose product is {self.size}"
                + (
                    "."
                    if places > self.size
                    else f"; or take some: world().create_partition_inclusive(range({places}))."
                ),
            )
        return CartesianPartition(self.transport, Grid(self.ranks, extents))

    def create_broadcast_partition_to(
        self, P_dest: Partition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[Partition, Partition]:
        """(P_send, P_recv): the team that this worker copies to, and the team it receives with; each root is first."""
        copies = Copies(self.geometry, P_dest.geometry, transpose_src, transpose_dest)
        me = self.transport.rank
        send = recv = NO_WORKERS
        if me in copies.source:
            send = tuple(dict.fromkeys((me, *copies.targets_of(me))))
        if me in copies.target:
            owner = copies.source_of(me)
            recv = tuple(dict.fromkeys((owner, *copies.targets_of(owner))))
        return self._team_or_nobody(send), self._team_or_nobody(recv)

    def create_reduction_partition_to(
        self, P_dest: Partition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[Partition, Partition]:
        """(P_send, P_recv): the team that this worker is summed with, and the team whose sum it gets; each root is first."""
        back = P_dest.create_broadcast_partition_to(self, transpose_src=transpose_dest, transpose_dest=transpose_src)
        return back[1], back[0]

    def create_allreduction_partition(self, axes_reduce: Iterable[int]) -> CartesianPartition:
        """The workers that differ from this one only along `axes_reduce`, on a grid of those axes."""
        axes = resolve_axes(self.dim, axes_reduce, "axes_reduce")
        shape = tuple(self.shape[axis] for axis in axes)
        ranks = self.geometry.team_along(self.transport.rank if self.active else self.ranks[0], axes)
        team = CartesianPartition(self.transport, Grid(ranks, shape))
        return team if self.active else team._without_me()

    def _team_or_nobody(self, ranks: Team) -> Partition:
        team = Partition(self.transport, Grid.line(ranks or self.ranks[:1]))
        return team if ranks else team._without_me()

    def _without_me(self) -> Self:
        """This partition, new and in nobody's hands, as one that does not include this worker."""
        self.active = self._includes_me = False
        return self

    # Exchanging small values within a partition

    def broadcast_data(self, data: Any, root: int = 0, P_data: Partition | None = None) -> np.ndarray | None:
        """The array passed by worker `root` of `P_data` (default: of this partition), on every active worker."""
        owners = P_data or self
        if not 0 <= root < owners.size or owners.ranks[root] not in self.geometry:
            raise PartitionError(f"`root` (={root}) is no worker of {owners} inside {self}.")
        if not self.active:
            return None
        mine = self.transport.rank == owners.ranks[root]
        call = f"broadcast_data from worker {owners.ranks[root]}"
        parts = self._gathered(call, lambda: np.atleast_1d(data) if mine else None)
        return next(part for part in parts if part is not None)

    def allgather_data(self, data: object) -> np.ndarray | None:
        """The integer arrays of all workers, one row each, in the partition's order."""
        if not self.active:
            return None
        rows = dict(zip(self.team, self._gathered("allgather_data", lambda: _integers(data)), strict=True))
        if len({row.shape for row in rows.values()}) > 1:
            raise PartitionError(
                "allgather_data needs arrays of one length from all workers.\n"
                + "\n".join(f"  worker {rank}: {row.size} numbers" for rank, row in rows.items())
            )
        return np.stack([rows[rank] for rank in self.ranks])

    def allreduce_data(self, data: np.ndarray, op: str = "sum") -> np.ndarray | None:
        """The element-wise `op` (sum, prod, max, min) over the arrays of all workers."""
        if op not in ("sum", "prod", "max", "min"):
            raise PartitionError(f"`op` (={op!r}) must be one of sum, prod, max, min.")
        if not self.active:
            return None
        parts = self._gathered(f"allreduce_data {op}", lambda: np.asarray(data))
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            raise PartitionError(
                "allreduce_data needs arrays of one shape and dtype from all workers.\n"
                + "\n".join(f"  worker {r}: {p.shape} {p.dtype}" for r, p in zip(self.team, parts, strict=True))
            )
        return getattr(np, op)(np.stack(parts), axis=0).astype(parts[0].dtype)

    def _gathered(self, call: str, make: Callable[[], np.ndarray | None]) -> list[Any]:
        return gathered_arrays(self.transport, self.team, call, make)

    def print_sequential(self, value: object) -> None:
        """Print everyone's value on the partition's first worker, in order."""
        if self.active:
            check_same_call(self.transport, self.team, "print_sequential", "print_sequential")
            parts = self.transport.gather_bytes(str(value).encode(), self.team, "print_sequential")
            if self.rank == 0:
                said = dict(zip(self.team, parts, strict=True))
                for place, rank in enumerate(self.ranks):
                    print(f"{place}: {said[rank].decode()}", flush=True)

    def barrier(self) -> None:
        """Return when every worker of the partition has arrived."""
        if self.active:
            check_same_call(self.transport, self.team, "barrier", "barrier")  # itself a barrier

    # Value semantics

    def deactivate(self) -> None:
        """Make the partition inactive on this worker; it keeps its shape, and stays equal to what it was equal to.

        Partitions hold no resources, so nothing else happens, except for the world of a communicator or process group
        (`gridwise.world(comm)`), which is closed: all of its workers must call this, as they would to free a
        communicator, and nothing made from it can be used afterwards.
        """
        if self.active and self.transport in user_transports and self is _worlds.get(self.transport):
            check_same_call(self.transport, self.team, "deactivate", "deactivate")
            self.transport.close()
        self.active = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Partition)
            and type(self) is type(other)
            and self.transport is other.transport
            and self.geometry == other.geometry
            and self._includes_me == other._includes_me  # not `active`, which may change while this is a key
        )

    def __hash__(self) -> int:
        return hash((id(self.transport), self.geometry))

    def __deepcopy__(self, memo: dict) -> Partition:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a partition belongs to its process and cannot be pickled: make it anew on the other side.")

    def __repr__(self) -> str:
        where = f"worker {self.rank}" if self.active else "inactive"
        shape = " x ".join(map(str, self.shape)) or "1"
        ranks = str(self.ranks) if self.size <= 16 else f"({self.ranks[0]}, ..., {self.ranks[-1]})"
        return f"<{type(self).__name__} {shape} of workers {ranks} on {self.transport.name}, here {where}>"

    def _repr_html_(self) -> str:
        drawing = Layout.balanced(self.geometry, self.shape)._repr_html_() if 0 not in self.shape else None
        return f"<div>{escape(repr(self))}</div>{drawing or ''}"


NO_WORKERS: Team = ()


class CartesianPartition(Partition):
    """Workers on a Cartesian grid: axis i of the grid cuts dim i of a tensor.

    Parameters
    ----------
    transport : the connection to the other workers
    grid : the workers and their arrangement

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> P_x.shape, P_x.index, P_x.neighbor_ranks(0)
    ((1, 1), (0, 0), [(-1, -1), (-1, -1)])
    """

    def create_cartesian_subtopology_partition(self, remain_shape: Sequence[bool]) -> CartesianPartition:
        """This worker's slice of the grid: the axes marked True remain."""
        if len(remain_shape) != self.dim:
            raise PartitionError(
                f"`remain_shape` (={tuple(remain_shape)}) needs one entry for each of {self.dim} axes."
            )
        return self.create_allreduction_partition([axis for axis, stays in enumerate(remain_shape) if stays])

    def cartesian_index(self, rank: int) -> Index:
        """The coordinates of the worker at place `rank` of the grid."""
        return unravel(self._checked(rank), self.shape)

    def neighbor_ranks(self, rank: int) -> list[tuple[int, int]]:
        """The places of the neighbours before and after `rank` along each axis, -1 beyond the edge."""
        world_rank = self.ranks[self._checked(rank)]
        pairs = []
        for axis in range(self.dim):
            around = [self.geometry.neighbour(world_rank, axis, step) for step in (-1, 1)]
            left, right = (NOBODY if peer is None else self.geometry.place_of(peer) for peer in around)
            pairs.append((left, right))
        return pairs

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise PartitionError(f"`rank` (={rank}) is no worker of {self}: valid are 0 to {self.size - 1}.")
        return rank


def world(comm: object = None) -> Partition:
    """All workers, in the order of their ranks; the same object every time, unless it was deactivated.

    Parameters
    ----------
    comm : an mpi4py communicator or a torch.distributed process group to use as the world; default: determined by how
        the process was started (see `gridwise.comm.launching.find`). A world made from a communicator or group holds
        connections and a small process; `deactivate` it when it is no longer needed.

    Examples
    --------
    >>> gridwise.world() is gridwise.world()
    True
    """
    transport = current() if comm is None else transport_over(comm)
    if transport not in _worlds:
        transport.on_close.append(lambda: _forget(transport))
    if transport not in _worlds or not _worlds[transport].active:
        _worlds[transport] = Partition(transport, Grid.line(range(transport.size)))
    return _worlds[transport]


PartitionLike = Partition | Sequence[int]
"""A partition, or the shape of the grid of all workers: ``(1, 1, 2, 2)``."""


def as_partition(given: object, who: str, name: str = "P_x") -> Partition:
    """The partition that is given, or the grid of the world of the shape that is given."""
    if isinstance(given, Partition):
        return given
    if isinstance(given, Sequence) and given and all(type(extent) is int for extent in given):
        return world().grid(*given)
    what = "cannot be chosen here" if given == "auto" else "is no partition, and no shape of a grid of workers"
    raise PartitionError(
        f"{who}: `{name}` (={given!r}) {what}.",
        fix=f"{name}=(1, 1, 2, 2), say: one number for each dim of the tensor, the parts that the dim is cut into. Their "
        f"product is the number of workers, here {world().size}.",
    )


def as_partitions(given: object, who: str) -> list[Partition] | Partition:
    """The partitions of several tensors: one each, or one for all of them."""
    if isinstance(given, tuple | list) and any(type(part) is not int for part in given):
        return [as_partition(part, who) for part in given]
    return as_partition(given, who)


def _are(workers: int) -> str:
    return "is 1 worker" if workers == 1 else f"are {workers} workers"


def _forget(transport: Transport) -> None:
    _worlds.pop(transport, None)


_worlds: dict[Transport, Partition] = {}


def local_slice(P_x: PartitionLike, global_shape: Sequence[int]) -> tuple[slice, ...]:
    """This worker's block of a tensor of `global_shape` on `P_x`, as slices; empty slices on inactive workers.

    Parameters
    ----------
    P_x : a partition with as many axes as the tensor has dims, or the shape of a grid of all workers
    global_shape : of the whole tensor

    Examples
    --------
    >>> gridwise.local_slice((1, 1), (4, 6))
    (slice(0, 4, None), slice(0, 6, None))
    """
    P_x = as_partition(P_x, "local_slice")
    layout = Layout.balanced(P_x.geometry, global_shape)
    return layout.block(P_x.transport.rank).slices if P_x.active else (slice(0, 0),) * P_x.dim


def zero_volume_tensor(
    b: int | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """An empty tensor, which a worker that holds no block passes in and gets back: shape ``(0,)``, or ``(b, 0)``.

    Parameters
    ----------
    b : the batch size, if the tensor is to have a batch dim
    dtype, requires_grad, device : as in torch

    Examples
    --------
    >>> gridwise.zero_volume_tensor(4).shape
    torch.Size([4, 0])
    """
    return torch.empty((0,) if b is None else (b, 0), dtype=dtype, requires_grad=requires_grad, device=device)


def _integers(data: object) -> np.ndarray:
    array = np.atleast_1d(np.asarray(data))
    if array.dtype.kind not in "iub":
        raise PartitionError(f"allgather_data gathers integers, got an array of {array.dtype}.")
    return array.astype(np.int64)
