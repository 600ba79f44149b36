"""Where a tensor of a model lies, and what that means for its gradient.

    cut           each worker has its block of a layout; blocks may be uneven or empty
    replicated    every worker has all of it
    partial sum   every worker has a summand of the full shape; their sum is the tensor

The cotangent of a tensor is placed such that no rule has to deal with it:

    tensor         its cotangent
    cut            cut the same way
    replicated     a partial sum: each worker has the contribution of its own uses of the tensor
    partial sum    replicated

So what all workers compute alike from a replicated tensor counts once, a replicated tensor is cut by slicing it, the
adjoint of gathering adds the contributions of all workers, and the gradients of parameters are one sum at the end.
Where a replicated tensor leaves the model, the cotangent that the user gives on all workers counts once
(`movement.leave`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..comm.transports.base import Team, Transport
from ..grid import Grid, Layout, Needs
from ..grid.arrange import arranged, layout_with_whole
from ..operators.call import TensorSpec

SMALL = 1 << 15
"""Up to this size a tensor that may lie anywhere is replicated: a message would cost more than the arithmetic."""


@dataclass(frozen=True)
class Cut:
    """Each worker has its block of `layout`, whose grid contains every worker once."""

    layout: Layout


@dataclass(frozen=True)
class Replicated:
    """Every worker has the whole tensor."""


@dataclass(frozen=True)
class Partial:
    """Every worker has a summand."""


Placement = Cut | Replicated | Partial
Want = Layout | Needs | Replicated | None
"""What a rule asks for: these blocks; boxes that may overlap, on a grid that may have extra leading axes; the whole
tensor on every worker; or None for the tensor where it lies."""


@dataclass(frozen=True)
class Workers:
    """The workers that run a model, in the order of the grid of its input, and which of them this one is."""

    transport: Transport
    grid: Grid

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return self.grid.ranks

    @cached_property
    def team(self) -> Team:
        return self.grid.members

    @cached_property
    def rank(self) -> int:
        return self.transport.rank

    @cached_property
    def size(self) -> int:
        return self.grid.size

    def spread(self, shape: Sequence[int], whole: Sequence[int] = (), like: Layout | None = None) -> Placement:
        """The most even blocks of a tensor with the dims `whole` uncut; replicated if it cannot be cut."""
        extents = tuple(shape)
        if like is not None:
            layout = layout_with_whole(like, whole, self.ranks)
            return Replicated() if layout is None else Cut(layout)
        found = arranged(extents, self.size, frozenset(whole))
        if max(found, default=1) == 1:
            return Replicated()
        return Cut(Layout.balanced(Grid(self.ranks, found), extents))


@dataclass(frozen=True)
class GlobalTensor(TensorSpec):
    """What a rule knows about a tensor: its global shape and dtype, and where it lies."""

    placement: Placement

    @property
    def layout(self) -> Layout | None:
        """Its layout, if it is cut."""
        return self.placement.layout if isinstance(self.placement, Cut) else None

    def is_cut_along(self, dims: Sequence[int]) -> bool:
        """Whether any of these dims is spread over several workers."""
        return self.layout is not None and any(self.layout.grid.shape[d] > 1 for d in dims)


def everything(layout: Layout) -> Needs:
    """The whole tensor, as the need of each worker of the layout's grid."""
    grid = layout.grid
    intervals = tuple(((0, n),) * p for n, p in zip(layout.global_shape, grid.shape, strict=True))
    return Needs(grid, intervals)


def grid_along(grid: Grid, order: Sequence[int], shape: Sequence[int]) -> Grid:
    """The workers of `grid`, with its axes in the given order and then the remaining ones, as a grid of `shape`."""
    import numpy as np

    rest = [d for d in range(grid.dim) if d not in order]
    ranks = np.array(grid.ranks).reshape(grid.shape).transpose([*order, *rest])
    return Grid(tuple(int(rank) for rank in ranks.ravel()), tuple(shape))


def permuted(layout: Layout, order: Sequence[int]) -> Layout:
    """The layout of the tensor with its dims permuted; every block stays on its worker."""
    grid = grid_along(layout.grid, order, [layout.grid.shape[d] for d in order])
    return Layout(grid, tuple(layout.cuts[d] for d in order))


def resized(layout: Layout, dims: Sequence[int], shape: Sequence[int]) -> Layout:
    """The same layout for a tensor of `shape`, which differs along `dims` only; these are uncut."""
    return with_dims(layout, [(0, shape[d]) if d in dims else cuts for d, cuts in enumerate(layout.cuts)])


def recut(layout: Layout, dim: int, cuts: Sequence[int]) -> Layout:
    """The same layout with other cuts along one dim."""
    return with_dims(layout, [*layout.cuts[:dim], tuple(cuts), *layout.cuts[dim + 1 :]])


def with_dim(layout: Layout, dim: int, extent: int) -> Layout:
    """The same layout for a tensor with one more dim, which is uncut."""
    return with_dims(layout, [*layout.cuts[:dim], (0, extent), *layout.cuts[dim:]])


def without_dims(layout: Layout, dims: Sequence[int]) -> Layout:
    """The same layout for a tensor without some dims, which are uncut."""
    return with_dims(layout, [cuts for d, cuts in enumerate(layout.cuts) if d not in dims])


def with_dims(layout: Layout, cuts: Sequence[tuple[int, ...]]) -> Layout:
    """A layout with the same workers in the same order and other cuts; dims that are added or dropped are uncut."""
    return Layout(Grid(layout.grid.ranks, tuple(len(each) - 1 for each in cuts)), tuple(cuts))
