"""A grid: which workers, in what shape. A frozen value, the same on every worker; it has no notion of "me".

    Grid((4, 5, 6, 7), (2, 2))        worker 4 | worker 5
                                      ---------+---------
                                      worker 6 | worker 7

Workers are in row-major order. Axes belong to the grid, dims to tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import PartitionError
from .box import Shape, whole_numbers

Index = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Workers `ranks` arranged row-major in `shape`.

    Parameters
    ----------
    ranks : the workers, by their ranks in the world
    shape : the extents of the axes; their product is the number of workers

    Examples
    --------
    >>> grid = gridwise.grid.Grid((0, 1, 2, 3, 4, 5), (2, 3))
    >>> grid.index_of(4)
    (1, 1)
    """

    ranks: tuple[int, ...]
    shape: Shape

    def __post_init__(self) -> None:
        if any(extent < 1 for extent in self.shape):
            raise PartitionError(f"a grid of shape {self.shape} has no place for a worker: each axis needs at least 1.")
        if math.prod(self.shape) != len(self.ranks):
            raise PartitionError(
                f"a grid of shape {self.shape} has {math.prod(self.shape)} places, but {len(self.ranks)} workers "
                "were given.\n  fix: choose a shape whose product is the number of workers."
            )
        if len(self._places) != len(self.ranks):
            raise PartitionError(f"a worker appears twice in {self.ranks}: each may appear only once in a grid.")

    @classmethod
    def line(cls, ranks: Iterable[int]) -> Grid:
        """A grid of one axis."""
        members = tuple(ranks)
        return cls(members, (len(members),))

    @cached_property
    def _places(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The workers sorted by rank."""
        return tuple(sorted(self.ranks))

    @cached_property
    def digest(self) -> str:
        """A short text that identifies the workers and their shape, the same in every process."""
        workers = ",".join(map(str, self.ranks)).encode()
        return f"{self.shape} {hashlib.blake2b(workers, digest_size=8).hexdigest()}"

    @property
    def dim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def __contains__(self, rank: object) -> bool:
        return rank in self._places

    def place_of(self, rank: int) -> int:
        """The position of a worker in row-major order."""
        if rank not in self._places:
            raise PartitionError(f"worker {rank} is not one of the {self.size} workers of this grid {self.shape}.")
        return self._places[rank]

    def index_of(self, rank: int) -> Index:
        """The coordinates of a worker."""
        return unravel(self.place_of(rank), self.shape)

    def rank_at(self, index: Sequence[int]) -> int:
        """The worker at these coordinates."""
        if len(index) != self.dim or not all(0 <= i < extent for i, extent in zip(index, self.shape, strict=True)):
            raise PartitionError(f"no worker stands at {tuple(index)} in a grid of shape {self.shape}.")
        return self.ranks[ravel(index, self.shape)]

    def team_along(self, rank: int, axes: Iterable[int]) -> tuple[int, ...]:
        """The workers that differ from `rank` only along `axes`, itself included, in row-major order."""
        free = resolve_axes(self.dim, axes)
        mine = self.index_of(rank)
        places = [0]
        for axis, extent in enumerate(self.shape):
            choices = range(extent) if axis in free else (mine[axis],)
            places = [place * extent + i for place in places for i in choices]
        return tuple(self.ranks[place] for place in places)

    def neighbour(self, rank: int, axis: int, step: int) -> int | None:
        """The worker `step` places further along `axis`, or None beyond the edge of the grid."""
        index = list(self.index_of(rank))
        index[axis] += step
        return self.rank_at(index) if 0 <= index[axis] < self.shape[axis] else None


def ravel(index: Sequence[int], shape: Shape) -> int:
    """Row-major position of an index."""
    place = 0
    for i, extent in zip(index, shape, strict=True):
        place = place * extent + i
    return place


def unravel(place: int, shape: Shape) -> Index:
    """Index of a row-major position."""
    index = []
    for extent in reversed(shape):
        place, i = divmod(place, extent)
        index.append(i)
    return tuple(reversed(index))


def resolve_axes(dim: int, axes: int | Iterable[int], name: str = "axes") -> tuple[int, ...]:
    """`axes` as a sorted tuple of distinct numbers in ``[0, dim)``; negative ones count from the end.

    Parameters
    ----------
    dim : how many axes there are
    axes : one or several of them
    name : name of the argument, for error messages

    Examples
    --------
    >>> resolve_axes(3, (-1, 0))
    (0, 2)
    """
    given = whole_numbers(axes if isinstance(axes, Iterable) else (axes,), name)
    wrong = [axis for axis in given if not -dim <= axis < dim]
    if wrong:
        raise PartitionError(
            f"`{name}` (={given}) names axis {wrong[0]}, but the grid has {dim} axes: valid are {-dim} to {dim - 1}."
        )
    return tuple(sorted({axis % dim for axis in given}))


def union_of(grids: Sequence[Grid]) -> tuple[int, ...]:
    """The workers of all grids, sorted by rank."""
    teams = {grid.members for grid in grids}
    return teams.pop() if len(teams) == 1 else tuple(sorted({rank for team in teams for rank in team}))
