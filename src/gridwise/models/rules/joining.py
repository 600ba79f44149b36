"""Joins and splits: concatenation, stacking, slices, and operators that select, repeat or reorder rows.

cat along a cut dim     each worker gets its rows of every part and joins them; rows of the largest part stay in place
slice of a cut dim      each worker slices its block, as long as the resulting blocks are roughly even
select of a cut dim     the row is cut along the other dims, and each worker gets its part; a small row goes to all
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ...grid import Grid, Layout, Needs, balanced_cuts, sliced_need
from ...grid.cuts import scaled
from ...operators.slicing import rows_of
from ..placement import (
    SMALL,
    Cut,
    Replicated,
    Want,
    everything,
    permuted,
    recut,
    resized,
    with_dim,
    with_dims,
    without_dims,
)
from .call import Call, NoRule, NothingCut, Placed
from .table import rule

EVEN_ENOUGH = 1.25
"""How much larger than the average the largest block may become before blocks are rebalanced."""


def clipped(cuts: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
    """The cuts of the rows ``[start, stop)`` of a dim with these cuts, counted from `start`."""
    return tuple(min(max(cut, start), stop) - start for cut in cuts)


def _is_even(cuts: Sequence[int]) -> bool:
    largest = max(b - a for a, b in pairwise(cuts))
    return largest <= max(EVEN_ENOUGH * cuts[-1] / (len(cuts) - 1), -(-cuts[-1] // (len(cuts) - 1)))


@rule("cat", "concat", "concatenate")
def cat(call: Call) -> Placed:
    name = "axis" if "axis" in call.given else "dim"
    dim = call[name] % len(call.result.shape)
    target = _joined_layout(call, dim)
    offset, wants = 0, list[Want]()
    for value in call.tensors:
        if value.shape == (0,):  # which torch skips
            wants.append(None)
            continue
        extent = value.shape[dim]
        own = [(max(a - offset, 0), min(b - offset, extent)) for a, b in pairwise(target.cuts[dim])]
        wants.append(Needs.of_layout(target).along(dim, [(a, b) if a < b else (0, 0) for a, b in own]))
        offset += extent
    return Placed(Cut(target), lambda *parts: torch.cat(parts, dim), wants)


def _joined_layout(call: Call, dim: int) -> Layout:
    """The layout of the joined tensor: that of the largest part, extended by the rows of the others."""
    parts, shape = [value for value in call.cut if value.dim == call.result.dim], call.result.shape  # (0,) is skipped
    largest = max(parts, key=lambda value: value.volume, default=None)
    if largest is None or largest.layout is None:
        raise NothingCut
    layout, before = largest.layout, 0
    for value in call.tensors:
        if value is largest:
            break
        before += value.shape[dim] if value.shape != (0,) else 0
    cuts = (0, *(cut + before for cut in layout.cuts[dim][1:-1]), shape[dim])
    return recut(layout, dim, cuts if _is_even(cuts) else balanced_cuts(shape[dim], len(cuts) - 1))


@rule("stack")
def stack(call: Call) -> Placed:
    _, layout = call.largest_cut()
    dim = call["dim"] % len(call.result.shape)
    target = with_dim(layout, dim, len(call.tensors))
    return Placed(Cut(target), call.locally(), [layout] * len(call.tensors))


@rule("slice", "narrow.default")
def sliced(call: Call) -> Placed:
    x, layout = call.first_cut()
    dim = call["dim"] % x.dim
    rows = rows_of(call, x.shape[dim])
    if not x.is_cut_along([dim]):
        return Placed(Cut(resized(layout, [dim], call.result.shape)), call.locally())
    if rows.step == 1:
        own = clipped(layout.cuts[dim], rows.start, max(rows.start, rows.stop))
        if call.keeps_alias or _is_even(own):
            return _in_place(call, layout, dim, own, rows)
    if call.keeps_alias:
        own = tuple(sum(row < cut for row in rows) for cut in layout.cuts[dim])
        return _in_place(call, layout, dim, own, rows)
    return _fetched(layout, dim, rows)


def _in_place(call: Call, layout: Layout, dim: int, own: tuple[int, ...], rows: range) -> Placed:
    """Each worker slices its own block."""
    target = recut(layout, dim, own)
    here, block = call.block(layout), call.block(target)
    count = block.shape[dim]
    first = rows[block.start[dim]] - here.start[dim] if count else 0
    stop = first + (count - 1) * rows.step + 1 if count else 0
    op, step = torch.ops.aten.slice.Tensor, rows.step
    return Placed(Cut(target), lambda x: op(x, dim, first, stop, step))


def _fetched(layout: Layout, dim: int, rows: range) -> Placed:
    """Even blocks of the slice; each worker fetches the rows of its own."""
    cuts = balanced_cuts(len(rows), layout.grid.shape[dim])
    target = recut(layout, dim, cuts)
    needs = Needs.of_layout(target).along(dim, [sliced_need(rows, outputs) for outputs in pairwise(cuts)])
    op, step = torch.ops.aten.slice.Tensor, rows.step
    return Placed(Cut(target), lambda x: op(x, dim, 0, None, step) if step > 1 else x, [needs])


@rule("select")
def select(call: Call) -> Placed:
    x, layout = call.first_cut()
    dim = call["dim"] % x.dim
    index = call["index"] % x.shape[dim]
    if not x.is_cut_along([dim]):
        return Placed(Cut(without_dims(layout, [dim])), lambda x: x.select(dim, index))
    target = call.workers.spread(call.result.shape) if call.result.volume > SMALL else Replicated()
    row = index, index + 1
    if isinstance(target, Cut):
        needs = Needs.of_layout(with_dim(target.layout, dim, 1)).along(dim, [row])
    else:
        needs = everything(layout).along(dim, [row] * layout.grid.shape[dim])
    return Placed(target, lambda x: x.select(dim, 0), [needs])


@rule(
    "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unsafe_split", "unsafe_chunk",

)  # fmt: skip
def split(call: Call) -> Placed:
    """Parts along a dim, which is made whole first."""
    if len(call.tensors) > 1:
        raise NoRule("a split at places that are no numbers")
    x, layout = call.first_cut()
    dim = call["dim"] % x.dim
    if x.is_cut_along([dim]):
        layout = call.whole(x, [dim])
    if call.kind.startswith("unbind"):
        return Placed(Cut(without_dims(layout, [dim])), call.locally(), [layout])
    return Placed([Cut(resized(layout, [dim], part.shape)) for part in call.results], call.locally(), [layout])


@rule("repeat", "tile", "repeat_interleave")
def repeat(call: Call) -> Placed:
    """Copies along dims, which are made whole; with `repeat_interleave` rows stay on their workers."""
    if len(call.tensors) > 1:
        return call.everywhere()
    (x, layout), shape = call.first_cut(), call.result.shape
    lacking = len(shape) - x.dim
    if call.kind == "repeat_interleave":
        if call["dim"] is None or not isinstance(call["repeats"], int):
            raise NoRule("repeat_interleave without a dim, or with numbers that are not known")
        dim, times = call["dim"] % x.dim, call["repeats"]
        target = recut(layout, dim, scaled(layout.cuts[dim], times))
        return Placed(Cut(target), lambda x: x.repeat_interleave(times, dim))
    grown = [d for d, (a, b) in enumerate(zip(x.shape, shape[lacking:], strict=True)) if a != b]
    layout = call.whole(x, grown)
    cuts = [*((0, n) for n in shape[:lacking]), *resized(layout, grown, shape[lacking:]).cuts]
    return Placed(Cut(with_dims(layout, cuts)), call.locally(), [layout])


@rule("roll", "fft_fftshift", "fft_ifftshift")
def roll(call: Call) -> Placed:
    """Rows shifted cyclically: along a cut dim, the route wraps around."""
    x, layout = call.first_cut()
    if call.kind == "roll":
        if not call["dims"]:
            raise NoRule("a roll of all elements in one line")
        pairs = list(zip((d % x.dim for d in call["dims"]), call["shifts"], strict=True))
    else:
        sign = 1 if call.kind == "fft_fftshift" else -1
        pairs = [(d, sign * (x.shape[d] // 2)) for d in call.dims("dim", x.dim)]
    shifts = dict.fromkeys(range(x.dim), 0)
    for d, shift in pairs:
        shifts[d] += shift
    shifts = {d: shift % max(1, x.shape[d]) for d, shift in shifts.items()}
    wraps = tuple(shifts[d] > 0 and layout.grid.shape[d] > 1 for d in range(x.dim))
    intervals = [
        tuple((a - shifts[d], b - shifts[d]) for a, b in own) if wraps[d] else own
        for d, own in enumerate(Needs.of_layout(layout).intervals)
    ]
    rest = [d for d, shift in shifts.items() if shift and not wraps[d]]
    amounts = [shifts[d] for d in rest]
    needs = Needs(layout.grid, tuple(intervals), wraps)
    return Placed(Cut(layout), lambda x: torch.roll(x, amounts, rest) if rest else x, [needs if any(wraps) else None])


def flipped(layout: Layout, dims: tuple[int, ...]) -> Layout:
    """The layout of the tensor with its rows in reverse order: every block stays on its worker, the grid is reversed."""
    import numpy as np

    ranks = np.flip(np.array(layout.grid.ranks).reshape(layout.grid.shape), dims)
    cuts = [
        tuple(each[-1] - cut for cut in reversed(each)) if d in dims else each for d, each in enumerate(layout.cuts)
    ]
    grid = Grid(tuple(int(rank) for rank in ranks.ravel()), layout.grid.shape)
    return Layout(grid, tuple(cuts))


@rule("flip")
def flip(call: Call) -> Placed:
    """Rows in reverse order: each worker reverses its own."""
    x, layout = call.first_cut()
    dims = tuple(d % x.dim for d in call["dims"])
    return Placed(Cut(flipped(layout, dims)), lambda x: x.flip(dims))


@rule("rot90")
def rot90(call: Call) -> Placed:
    """Turned by quarters: each worker turns its block."""
    x, layout = call.first_cut()
    a, b = call.dims("dims", x.dim)
    quarters, order = call["k"] % 4, list(range(x.dim))
    layout = flipped(layout, ((), (b,), (a, b), (a,))[quarters])
    if quarters % 2:
        order[a], order[b] = b, a
    return Placed(Cut(permuted(layout, order)), call.locally())
