"""Split tensors for tests: parameters that carry their placement, as distributed layers make them."""

from __future__ import annotations

import torch
from torch import Tensor

from gridwise.grid import Box, Grid, Layout
from gridwise.partition import Partition


class SplitParameter(torch.nn.Parameter):
    """A worker's block of a global parameter."""

    placement: Layout | None = None
    block: Box | None = None


def split(whole: Tensor, layout: Layout, rank: int, replica_of: int | None = None) -> SplitParameter:
    """This worker's block of `whole`; a copy of that of `replica_of`; or a zero-volume parameter."""
    box = layout.block(rank) if rank in layout.grid else None
    if box is None and replica_of is not None:
        box = layout.block(replica_of)
    data = whole[box.slices].clone() if box is not None else whole.new_empty(0)
    parameter = SplitParameter(data, requires_grad=whole.is_floating_point())
    parameter.placement, parameter.block = layout, box
    return parameter


def line(P: Partition, shape: tuple[int, ...], dim: int = 0, cuts: tuple[int, ...] | None = None) -> Layout:
    """All workers in a row along one dim of a tensor of `shape`."""
    extents = [1] * len(shape)
    extents[dim] = P.size
    grid = Grid(P.ranks, tuple(extents))
    if cuts is None:
        return Layout.balanced(grid, shape)
    return Layout(grid, tuple(cuts if d == dim else (0, n) for d, n in enumerate(shape)))
