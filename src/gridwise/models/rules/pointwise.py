"""Pointwise operators, which make each element of the output from the elements at the same index: they run on blocks.

Of tensors that broadcast, each block gets the part that it needs; tensors in other blocks are moved to those of the
largest.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from ...grid import Grid, Interval, Layout, Needs, balanced_cuts
from ...operators.pointwise import UNTAGGED
from ..placement import Cut, GlobalTensor, Replicated, Want, permuted
from .call import Call, Placed
from .table import rule

IN_PLACE = ("copy", "copy_", "fill", "fill_", "zero", "zero_", "detach_")
LIKE = ("zeros_like", "ones_like", "full_like", "empty_like")


def is_pointwise(op: object) -> bool:
    tags = getattr(op, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


@rule(*UNTAGGED, *IN_PLACE, *LIKE)
def pointwise(call: Call) -> Placed:
    """Any pointwise operator, with broadcasting."""
    if not call.cut:
        return call.everywhere()
    target = call.tensors[0].layout if call.written else common_layout(call, call.result.shape)
    if target is None:
        return call.everywhere()
    wants = [needed_by(target, value) for value in call.tensors]
    return Placed(Cut(target), call.locally(), wants)


def common_layout(call: Call, shape: tuple[int, ...]) -> Layout:
    """The layout of a tensor of `shape` to which the tensors of a call broadcast: that of the largest."""
    largest, layout = call.largest_cut()
    lacking = len(shape) - largest.dim
    if lacking == 0 and largest.shape == shape:
        return layout
    cuts: list[tuple[int, ...]] = [(0, n) for n in shape[:lacking]]
    for n, have, p in zip(shape[lacking:], layout.cuts, layout.grid.shape, strict=True):
        cuts.append(have if have[-1] == n else balanced_cuts(n, p))
    return Layout(Grid(layout.grid.ranks, (1,) * lacking + layout.grid.shape), tuple(cuts))


def needed_by(target: Layout, value: GlobalTensor) -> Want:
    """What the blocks of `target` need of a tensor that broadcasts to it."""
    if not value.shape:
        return Replicated()
    if value.shape == target.global_shape:
        return target
    if value.layout is None and value.volume == 1:
        return Replicated()
    lacking = target.grid.dim - value.dim
    intervals: list[tuple[Interval, ...]] = [((0, 1),) * p for p in target.grid.shape[:lacking]]
    for n, cuts in zip(value.shape, target.cuts[lacking:], strict=True):
        intervals.append(tuple(pairwise(cuts)) if n == cuts[-1] else ((0, n),) * (len(cuts) - 1))
    return Needs(target.grid, tuple(intervals))


@rule("prelu")
def prelu(call: Call) -> Placed:
    """PReLU, with one slope for all channels or one for each; channels are dim 1."""
    (x, layout), slope = call.first_cut(), call.tensors[1]
    want: Want = Replicated()
    if slope.volume > 1 and x.is_cut_along([1]):
        order = [*(d for d in range(x.dim) if d != 1), 1]
        last = permuted(layout, order)
        intervals = [*(((0, 1),) * p for p in last.grid.shape[:-1]), tuple(pairwise(last.cuts[-1]))]
        want = Needs(last.grid, tuple(intervals))
    run = call.locally()
    return Placed(Cut(layout), lambda x, slope: run(x, slope.reshape(-1)), [layout, want])


@rule("to", "type_as", "_to_copy")
def converted(call: Call) -> Placed:
    """A conversion to another dtype or device, perhaps that of a second tensor."""
    layout = call.tensors[0].layout
    placement = Replicated() if layout is None else Cut(layout)
    return Placed(placement, call.locally(), call.first_alone(layout or Replicated()))
