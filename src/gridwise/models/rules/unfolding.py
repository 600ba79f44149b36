"""Windows as a dim of their own: `Tensor.unfold`, and `F.unfold`, which lays them out in columns."""

from __future__ import annotations

import math
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor

from ...grid import Cuts, Grid, Layout, Needs, balanced_cuts, hull_then_pad, window_need
from ...grid.cuts import scaled
from ..placement import Cut, recut, with_dims
from .call import Call, NoRule, Placed
from .table import rule
from .windowed import each


@rule("unfold")
def unfold(call: Call) -> Placed:
    """Windows along one dim, in a new last dim; along a cut dim each worker gets the rows of its windows."""
    x, layout = call.first_cut()
    dim, size, step = call["dimension"] % x.dim, call["size"], call["step"]
    count, grid = call.result.shape[dim], layout.grid
    if grid.shape[dim] == 1:
        return Placed(Cut(_with_windows(layout, dim, (0, count), size)), call.locally())
    windows = balanced_cuts(count, grid.shape[dim])
    rows = [window_need(outputs, size, step, 0, 1) for outputs in pairwise(windows)]
    needs = Needs.of_layout(layout).along(dim, [(a, b) if a < b else (0, 0) for a, b in rows])
    target = _with_windows(layout, dim, windows, size)
    return Placed(Cut(target), call.unless_empty(call.locally(), target), [needs])


def _with_windows(layout: Layout, dim: int, windows: Cuts, size: int) -> Layout:
    return with_dims(layout, [*recut(layout, dim, windows).cuts, (0, size)])


@rule("im2col")
def columns(call: Call) -> Placed:
    """Windows of an image in columns: rows of windows are cut; each worker gets the image rows under its windows."""
    x, layout = call.first_cut()
    if x.dim != 4:
        raise NoRule("an image without a batch")
    kernel, stride, padding, dilation = (
        each(call[name], 2) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    batch, _, *space = layout.grid.shape
    blocks = call.workers.size // batch
    windows = balanced_cuts(sizes[0], blocks)
    rows = [
        hull_then_pad(window_need(outputs, kernel[0], stride[0], padding[0], dilation[0]), x.shape[2], "constant")
        for outputs in pairwise(windows)
    ]
    grid = Grid(call.workers.ranks, (batch, 1, blocks, 1))
    cut = layout.cuts[0]
    intervals = (tuple(pairwise(cut)), ((0, x.shape[1]),), tuple(row.hull for row in rows), ((0, x.shape[3]),))
    target = Layout(
        Grid(call.workers.ranks, (batch, 1, blocks)), (cut, (0, call.result.shape[1]), scaled(windows, sizes[1]))
    )
    mine = rows[grid.index_of(call.workers.rank)[2]]

    def run(x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, mine.before, mine.after))
        return F.unfold(x, kernel, dilation, (0, padding[1]), stride)

    assert math.prod(space) * layout.grid.shape[1] == blocks
    return Placed(Cut(target), call.unless_empty(run, target), [Needs(grid, intervals)])
