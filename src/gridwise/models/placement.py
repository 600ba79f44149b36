"""Where a tensor of a model lies, and what that means for its gradient.

    cut           each worker has its block of a layout; blocks may be uneven or empty
    replicated    every worker has all of it
    partial sum   every worker has a summand of the same shape; their sum is the tensor

The cotangent of a tensor lies so that no rule has to think about it:

    tensor         its cotangent
    cut            cut the same way
    replicated     a partial sum: each worker has the share of what it made of the tensor
    partial sum    replicated

So what all workers compute alike from a replicated tensor counts once, a replicated tensor is cut by slicing it, the adjoint
of gathering adds what all have, and the gradients of parameters are one sum at the end. Where a replicated tensor leaves
the model, the cotangent that the user gives on all workers counts once (`movement.leave`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from ..comm.transports.base import Team, Transport
from ..grid import Grid, Layout, Needs, Shape
from ..grid.arrange import arranged, layout_with_whole

SMALL = 1 << 15
"""Elements up to which a tensor that may lie anywhere is replicated: its message costs more than its arithmetic."""


@dataclass(frozen=True)
class Cut:
    """Each worker has its block of `layout`, whose grid has every worker once."""

    layout: Layout


@dataclass(frozen=True)
class Replicated:
    """Every worker has all of it."""


@dataclass(frozen=True)
class Partial:
    """Every worker has a summand."""


Placement = Cut | Replicated | Partial
Want = Layout | Needs | Replicated | None
"""What a rule asks for: these blocks, boxes that may overlap (perhaps with more axes, in front, than the tensor has dims),
all of it on every worker, or None for the tensor as it is."""


@dataclass(frozen=True)
class Workers:
    """Who runs a model, in the order of the grid of its input; and which of them this is."""

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
        """The most even blocks of a tensor, with some dims whole; replicated where it cannot be cut."""
        extents = tuple(shape)
        if like is not None:
            layout = layout_with_whole(like, whole, self.ranks)
            return Replicated() if layout is None else Cut(layout)
        found = arranged(extents, self.size, frozenset(whole))
        if max(found, default=1) == 1:
            return Replicated()
        return Cut(Layout.balanced(Grid(self.ranks, found), extents))


@dataclass(frozen=True)
class GlobalTensor:
    """What a rule knows of a tensor: its global shape and dtype, and where it lies."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    placement: Placement
    order: tuple[int, ...] = ()
    """The dims in the order of their strides, the largest first; empty if that is their own order."""

    @property
    def layout(self) -> Layout | None:
        """Its blocks, if it is cut."""
        return self.placement.layout if isinstance(self.placement, Cut) else None

    @property
    def dim(self) -> int:
        return len(self.shape)

    @property
    def volume(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.volume * self.dtype.itemsize

    def is_cut_along(self, dims: Sequence[int]) -> bool:
        """Whether any of these dims lies on several workers."""
        return self.layout is not None and any(self.layout.grid.shape[d] > 1 for d in dims)


def everything(layout: Layout) -> Needs:
    """Each worker of the layout's grid needs the whole tensor."""
    grid = layout.grid
    lines = tuple(((0, n),) * p for n, p in zip(layout.global_shape, grid.shape, strict=True))
    return Needs(grid, lines)


def grid_along(grid: Grid, order: Sequence[int], shape: Sequence[int]) -> Grid:
    """The workers with the axes `order` of their grid in that order, then the others, in a shape with as many places."""
    import numpy as np

    rest = [d for d in range(grid.dim) if d not in order]
    ranks = np.array(grid.ranks).reshape(grid.shape).transpose([*order, *rest])
    return Grid(tuple(int(rank) for rank in ranks.ravel()), tuple(shape))


def permuted(layout: Layout, order: Sequence[int]) -> Layout:
    """The layout of the tensor with its dims in another order, on the same workers without a movement."""
    grid = grid_along(layout.grid, order, [layout.grid.shape[d] for d in order])
    return Layout(grid, tuple(layout.cuts[d] for d in order))


def resized(layout: Layout, dims: Sequence[int], shape: Sequence[int]) -> Layout:
    """The blocks of a tensor of `shape` that differs along `dims` alone, which are whole."""
    return with_dims(layout, [(0, shape[d]) if d in dims else cuts for d, cuts in enumerate(layout.cuts)])


def recut(layout: Layout, dim: int, cuts: Sequence[int]) -> Layout:
    """The same blocks, but along one dim."""
    return with_dims(layout, [*layout.cuts[:dim], tuple(cuts), *layout.cuts[dim + 1 :]])


def with_dim(layout: Layout, dim: int, extent: int) -> Layout:
    """The same blocks of a tensor with one dim more, which is whole."""
    return with_dims(layout, [*layout.cuts[:dim], (0, extent), *layout.cuts[dim:]])


def without_dims(layout: Layout, dims: Sequence[int]) -> Layout:
    """The same blocks of a tensor that lacks some dims, which are whole."""
    return with_dims(layout, [cuts for d, cuts in enumerate(layout.cuts) if d not in dims])


def with_dims(layout: Layout, cuts: Sequence[tuple[int, ...]]) -> Layout:
    """The same workers in the same order, with other cuts: dims that are added or dropped are not cut."""
    return Layout(Grid(layout.grid.ranks, tuple(len(each) - 1 for each in cuts)), tuple(cuts))
