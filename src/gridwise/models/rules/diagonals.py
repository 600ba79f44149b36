"""Diagonals and triangles of matrices: each worker has those of its block, which begin elsewhere."""

from __future__ import annotations

from ..placement import Cut, Partial, permuted, recut
from .call import Call, Placed
from .joining import clipped
from .table import rule


@rule("tril", "triu")
def triangle(call: Call) -> Placed:
    """The part below or above a diagonal."""
    x, layout = call.first_cut()
    start = call.block(layout).start
    return Placed(Cut(layout), call.locally(diagonal=call["diagonal"] + start[x.dim - 2] - start[x.dim - 1]))


@rule("trace")
def trace(call: Call) -> Placed:
    """Each worker sums the elements of the diagonal that it has."""
    _, layout = call.first_cut()
    start = call.block(layout).start
    return Placed(Partial(), lambda x: x.diagonal(start[0] - start[1]).sum(dtype=call.result.dtype))


@rule("diagonal")
def diagonal(call: Call) -> Placed:
    """The elements of a diagonal lie where their rows do, or their columns, if only these are cut."""
    x, layout = call.first_cut()
    rows, columns = call["dim1"] % x.dim, call["dim2"] % x.dim
    if x.is_cut_along([rows]) and x.is_cut_along([columns]):
        layout = call.whole(x, [columns])
    along = columns if layout.grid.shape[columns] > 1 else rows
    offset, count = call["offset"], call.result.shape[-1]
    start = max(0, offset) if along == columns else max(0, -offset)
    own = recut(layout, along, clipped(layout.cuts[along], start, start + count))
    target = permuted(own, [*(d for d in range(x.dim) if d not in (rows, columns)), along])
    first = call.block(layout).start[along]
    shifted = offset - first if along == columns else offset + first
    return Placed(Cut(target), lambda x: x.diagonal(shifted, rows, columns), [layout])
