"""Local operators of one tensor: each worker fetches what its block of the output sees, as the operator on boxes says.

Pooling, interpolation, padding, windows as dims. The output is balanced on the grid of the input, except along dims
that the operator leaves as they are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...grid import Box, Grid, Layout, balanced_cuts
from ...grid.arrange import arranged
from ...grid.cuts import scaled
from ...nn.engine.agreement import key_of
from ...nn.engine.operator import CallId
from ...nn.windows.local_part import LocalPart
from ...nn.windows.padded_part import padded_part
from ...operators.on_boxes import Local, Needs
from ...operators.table import maker_for
from ...operators.windows.adaptive_pooling import adaptive_average
from ...operators.windows.interpolation import MODES as INTERPOLATIONS
from ...operators.windows.interpolation import SMOOTH
from ...operators.windows.padding import MODES as PADDINGS
from ...operators.windows.padding import rows_of
from ...operators.windows.pooling import dims_of
from ...operators.windows.unfolding import Columns
from ..placement import SMALL, Cut, GlobalTensor, recut, with_dims
from .call import Call, NoRule, NothingCut, Placed
from .reductions import summed
from .table import rule


def source_layout(call: Call, x: GlobalTensor, moves: bool = True) -> Layout:
    """The layout of ``(batch, channel, *space)`` that the operator gets; if none, every worker computes the whole call.

    With `moves`, where the output has fewer rows than the grid has workers along a dim, other dims are cut instead.
    """
    result = call.result
    if x.layout is None:
        if result.volume <= SMALL:
            raise NothingCut
        grid = call.workers.grid
        fits = grid.dim == x.dim and all(n >= p for n, p in zip(result.shape, grid.shape, strict=True))
        shape = grid.shape if fits else arranged(result.shape, call.workers.size)
    elif not moves or all(n >= p for n, p in zip(result.shape, x.layout.grid.shape, strict=True)):
        return x.layout
    else:
        shape = arranged(result.shape, call.workers.size, frozenset(), x.layout.grid.shape)
    if max(shape) == 1:
        raise NothingCut
    return Layout.balanced(Grid(call.workers.ranks, shape), x.shape)


def target_layout(needs: Needs, source: Layout, shape: tuple[int, ...]) -> Layout:
    """Balanced blocks of an output with as many dims, but those of the input along dims that are left as they are."""
    whole, cuts = Box.of_shape(shape), []
    for d, (own, n) in enumerate(zip(source.cuts, shape, strict=True)):
        ends = [(a, b) for a, b in pairwise(own) if a < b]
        kept = (
            own[-1] == n and 0 not in shape and all(_along(needs(_with(whole, d, each))[0], d) == each for each in ends)
        )
        cuts.append(own if kept else balanced_cuts(n, source.grid.shape[d]))
    return Layout(source.grid, tuple(cuts))


def _along(box: Box, d: int) -> tuple[int, int]:
    return box.start[d], box.stop[d]


def _with(box: Box, d: int, ends: tuple[int, int]) -> Box:
    return Box((*box.start[:d], ends[0], *box.start[d + 1 :]), (*box.stop[:d], ends[1], *box.stop[d + 1 :]))


def placed_by(call: Call, part: LocalPart, source: Layout, target: Layout) -> Placed:
    """The answer of a rule whose call is run by `part`."""
    call_id, dtypes = CallId(key_of(call.name), 0), [result.dtype for result in call.results]

    def run(x: Tensor, *_: Tensor) -> Any:
        made = part(x, call_id, x.requires_grad and torch.is_grad_enabled())
        if not part.block.volume:
            made = made.to(dtypes[0])
            return (
                made if len(dtypes) == 1 else (made, *(made.new_empty(made.shape, dtype=each) for each in dtypes[1:]))
            )
        return made

    halo = 0 if part.fetch is None else part.fetch.incoming * call.tensors[0].dtype.itemsize
    return Placed(Cut(target), run, call.others_whole(source), moved=halo)


def by_boxes(call: Call, operator: Local, source: Layout, target: Layout | None = None) -> Placed:
    """The operator on the blocks of `target`, from an input in the blocks of `source`."""
    workers = call.workers
    target = target or target_layout(operator.needs, source, call.result.shape)
    part = LocalPart.of(workers.transport, workers.team, call.name, operator, source, target)
    return placed_by(call, part, source, target)


def operator_of(call: Call) -> Local:
    """The operator on boxes of a call."""
    make = maker_for(call.op)
    assert make is not None, call.op
    made = make(call)
    assert isinstance(made, Local), call.op
    return made


@rule(
    *(f"max_pool{d}d{end}" for d in (1, 2, 3) for end in ("", "_with_indices")),
    *(f"{kind}{d}d" for d in (1, 2, 3) for kind in ("avg_pool", "adaptive_max_pool")),
)  # fmt: skip
def pooling(call: Call) -> Placed:
    return by_boxes(call, operator_of(call), source_layout(call, call.tensors[0], moves=False))


@rule(*(f"adaptive_avg_pool{d}d" for d in (1, 2, 3)), *(f"_adaptive_avg_pool{d}d" for d in (2, 3)))
def adaptive_avg_pool(call: Call) -> Placed:
    """Averages over windows that depend on the sizes; an average over all of space is a sum over the workers."""
    dims, dim = dims_of(call), call.tensors[0].dim
    if call.result.shape[-dims:] == (1,) * dims:
        return summed(call, range(dim - dims, dim), keepdim=True, is_mean=True)
    return by_boxes(call, adaptive_average(call), source_layout(call, call.tensors[0], moves=False))


@rule(*INTERPOLATIONS, *SMOOTH)
def interpolation(call: Call) -> Placed:
    """Interpolation in global coordinates."""
    return by_boxes(call, operator_of(call), source_layout(call, call.tensors[0]))


@rule(
    "pad", "constant_pad_nd", *(f"{mode}_pad{d}d" for mode in PADDINGS for d in (1, 2, 3)), "_pad_circular",
)  # fmt: skip
def pad(call: Call) -> Placed:
    _, source = call.first_cut()
    target, workers = target_layout(rows_of(call).needs, source, call.result.shape), call.workers
    return placed_by(
        call, padded_part(call, workers.transport, workers.team, call.name, source, target), source, target
    )


@rule("unfold")
def unfold(call: Call) -> Placed:
    """Windows along one dim, in a new last dim; along a cut dim each worker gets the rows of its windows."""
    x, layout = call.first_cut()
    dim = call["dimension"] % x.dim
    windows = recut(layout, dim, balanced_cuts(call.result.shape[dim], layout.grid.shape[dim]))
    target = with_dims(layout, [*windows.cuts, (0, call["size"])])
    if not x.is_cut_along([dim]):  # a view of each block, as in torch
        return Placed(Cut(target), call.locally())
    if call.keeps_alias:
        raise NoRule("a view that is written to, of blocks that have to be moved")
    return by_boxes(call, operator_of(call), layout, target)


@rule("im2col")
def columns(call: Call) -> Placed:
    """Windows of an image in columns: rows of windows are cut; each worker gets the image rows under its windows."""
    x, layout = call.first_cut()
    if x.dim != 4:
        raise NoRule("an image without a batch")
    batch, rows = layout.grid.shape[0], Columns(call, x.shape).counts
    blocks = call.workers.size // batch
    grid = Grid(call.workers.ranks, (batch, 1, blocks))
    cuts = layout.cuts[0], (0, call.result.shape[1]), scaled(balanced_cuts(rows[0], blocks), rows[1])
    return by_boxes(call, operator_of(call), layout, Layout(grid, cuts))
