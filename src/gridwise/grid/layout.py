"""A layout: a grid and the cuts of a global shape, one list of cut points per dim. It gives every worker's block.

    Layout(Grid((0, 1, 2, 3), (2, 2)), ((0, 3, 5), (0, 4, 8)))      a 5 x 8 tensor in four blocks

Grid axis i cuts tensor dim i. Blocks are a product of 1-D cuts, so the size of a layout is the sum of the axis extents,
not their product. `Boxes` is the other kind of source: an arbitrary list of blocks, as in a foreign checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import PartitionError
from .box import Box, Shape, whole_numbers
from .cuts import Cuts, balanced_cuts, checked_cuts, interval
from .drawing import Drawing, Halo, draw
from .grid import Grid, Index, unravel


@dataclass(frozen=True)
class Layout:
    """The blocks of a tensor of `global_shape` on `grid`, cut along each dim at `cuts`.

    Parameters
    ----------
    grid : the workers
    cuts : the cut points of each dim, from 0 to its extent

    Examples
    --------
    >>> layout = gridwise.grid.Layout.balanced(gridwise.grid.Grid((0, 1, 2, 3), (2, 2)), (5, 8))
    >>> layout.cuts
    ((0, 3, 5), (0, 4, 8))
    >>> layout.block(3).slices
    (slice(3, 5, None), slice(4, 8, None))
    """

    grid: Grid
    cuts: tuple[Cuts, ...]

    def __post_init__(self) -> None:
        _need_grid(self.grid)
        if len(self.cuts) != self.grid.dim:
            raise PartitionError(
                f"a grid of {self.grid.dim} axes {self.grid.shape} needs a tensor of {self.grid.dim} dims, got "
                f"{len(self.cuts)}: grid axis i cuts tensor dim i.\n  fix: use 1 for the axes of dims that are not cut."
            )
        for cuts, blocks in zip(self.cuts, self.grid.shape, strict=True):
            checked_cuts(cuts, blocks)

    @classmethod
    def balanced(cls, grid: Grid, global_shape: Sequence[int]) -> Layout:
        """Blocks that differ by at most one row per dim, the longer ones first.

        >>> Layout.balanced(Grid((0, 1), (2,)), (5,)).cuts
        ((0, 3, 5),)
        """
        _need_grid(grid)
        extents = whole_numbers(global_shape, "global_shape")
        if len(extents) != grid.dim:
            raise PartitionError(
                f"a tensor of shape {extents} has {len(extents)} dims, the grid {grid.shape} has "
                f"{grid.dim} axes: grid axis i cuts tensor dim i.\n  fix: use 1 for the axes of dims that are not cut."
            )
        return cls(grid, tuple(balanced_cuts(n, p) for n, p in zip(extents, grid.shape, strict=True)))

    @property
    def global_shape(self) -> Shape:
        return tuple(cuts[-1] for cuts in self.cuts)

    @property
    def is_filled(self) -> bool:
        """Whether every worker has elements.

        >>> Layout.balanced(Grid((0, 1), (2,)), (1,)).is_filled
        False
        """
        return all(b > a for cuts in self.cuts for a, b in pairwise(cuts))

    def drawing(self, halo: Halo | None = None) -> Drawing:
        """A picture of which worker owns what, in 1 to 5 dims; `halo`, rows (before, after) per dim, is drawn dashed.

        >>> Layout.balanced(Grid((0, 1), (2,)), (5,)).drawing(halo=[(1, 1)])[:4]
        '<svg'
        """
        return draw(self, halo)

    def _repr_html_(self) -> str | None:
        return str(self.drawing()) if 1 <= self.grid.dim <= 5 else None

    def block_at(self, index: Index) -> Box:
        """The block of the worker at these coordinates, in global indices."""
        return Box.of_intervals(interval(cuts, i) for cuts, i in zip(self.cuts, index, strict=True))

    def block(self, rank: int) -> Box:
        """The block of a worker, in global indices."""
        return self.block_at(self.grid.index_of(rank))

    def blocks(self) -> Iterator[tuple[int, Box]]:
        """Every worker with its block. Time grows with the size of the grid: for pictures and small grids."""
        for place, rank in enumerate(self.grid.ranks):
            yield rank, self.block_at(unravel(place, self.grid.shape))


def _need_grid(grid: object) -> None:
    """What version 0.1 had as `grid` of a partition is its `geometry`; `grid` is a method that makes another partition."""
    if not isinstance(grid, Grid):
        raise PartitionError(
            f"a layout needs a `gridwise.grid.Grid`, got {type(grid).__name__}.\n  fix: that of a partition is P_x.geometry."
        )


@dataclass(frozen=True)
class Boxes:
    """Any list of (owner, block), disjoint or not, such as the shards of a foreign checkpoint.

    Parameters
    ----------
    items : pairs of an owner and its block

    Examples
    --------
    >>> boxes = gridwise.grid.Boxes.of([(0, gridwise.grid.Box((0,), (3,))), (1, gridwise.grid.Box((3,), (5,)))])
    >>> [owner for owner, _ in boxes.pieces(gridwise.grid.Box((1,), (5,)))]
    [0, 1]
    """

    items: tuple[tuple[int, Box], ...]

    @classmethod
    def of(cls, items: Iterable[tuple[int, Box]]) -> Boxes:
        return cls(tuple(items))

    def pieces(self, wanted: Box) -> Iterator[tuple[int, Box]]:
        """The owners of parts of `wanted`, each with its part, in the order of the list."""
        for owner, box in self.items:
            common = box.intersect(wanted)
            if common is not None:
                yield owner, common
