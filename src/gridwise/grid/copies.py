"""Copies from one grid to another: which worker has the original, and which workers get a copy.

The rule is that of array broadcasting. The source's shape is padded with ones on the left; along every axis it must
then equal the target's extent or be 1. Axes with equal extents match one to one; along the others the source is copied.

    source (1, 2)     target (3, 2)         each column's worker copies to the three workers of that column

`transpose_src` and `transpose_dest` reverse a grid's axes first. The adjoint of copying is summing, so the same object
also describes which workers sum from which.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PartitionError
from .box import Shape
from .grid import Grid, Index


@dataclass(frozen=True)
class Copies:
    """The workers of `target` to which each worker of `source` is copied."""

    source: Grid
    target: Grid
    transpose_src: bool = False
    transpose_dest: bool = False

    def __post_init__(self) -> None:
        source, target = self._source_shape, self._target_shape
        if len(source) != len(target) or any(a not in (1, b) for a, b in zip(source, target, strict=True)):
            raise PartitionError(
                f"a grid of shape {self.source.shape}{' (transposed)' * self.transpose_src} cannot be copied to one of shape "
                f"{self.target.shape}{' (transposed)' * self.transpose_dest}: each axis of the first, counted from the last, "
                "must be 1 or equal to the other's."
            )

    @property
    def _target_shape(self) -> Shape:
        return _transposed(self.target.shape, self.transpose_dest)

    @property
    def _source_shape(self) -> Shape:
        shape = _transposed(self.source.shape, self.transpose_src)
        return (1,) * (self.target.dim - len(shape)) + shape

    def source_of(self, rank: int) -> int:
        """The worker whose tensor the target worker `rank` receives."""
        index = _transposed(self.target.index_of(rank), self.transpose_dest)
        picked = tuple(0 if extent == 1 else i for i, extent in zip(index, self._source_shape, strict=True))
        return self.source.rank_at(_transposed(picked[len(picked) - self.source.dim :], self.transpose_src))

    def targets_of(self, rank: int) -> tuple[int, ...]:
        """The workers that receive the tensor of the source worker `rank`, in row-major order of the target."""
        index = _transposed(self.source.index_of(rank), self.transpose_src)
        index = (0,) * (self.target.dim - len(index)) + index
        free = [axis for axis, extent in enumerate(self._source_shape) if extent == 1]
        corner = self.target.rank_at(_transposed(index, self.transpose_dest))
        last = self.target.dim - 1
        return self.target.team_along(corner, [last - axis for axis in free] if self.transpose_dest else free)

    def teams_of(self, rank: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The copies that `rank` takes part in: (owner of the original, sorted team including it), ordered by owner.

        Every worker goes through its teams in this order, which rules out deadlock.
        """
        owners = set()
        if rank in self.source:
            owners.add(rank)
        if rank in self.target:
            owners.add(self.source_of(rank))
        return tuple((owner, tuple(sorted({owner, *self.targets_of(owner)}))) for owner in sorted(owners))

    @property
    def is_identity(self) -> bool:
        """Whether every worker is copied to itself only."""
        return self.source.ranks == self.target.ranks and all(
            self.targets_of(rank) == (rank,) for rank in self.source.ranks
        )


def _transposed(axes: Shape | Index, reverse: bool) -> tuple[int, ...]:
    return tuple(reversed(axes)) if reverse else tuple(axes)
