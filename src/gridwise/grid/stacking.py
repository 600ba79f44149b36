"""Boxes that are stacks: margins, own rows and received rows follow one another along one dim.

So it is for a grid that cuts a single dim of space. Such a box is put together by one concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .box import Shape
from .cuts import Interval
from .route import Route

OWN = -1


@dataclass(frozen=True)
class Stacking:
    """Which piece follows which along `dim`: numbers of received pieces, and `OWN`, with margins of these shapes around."""

    dim: int
    order: tuple[int, ...]
    before: Shape
    after: Shape


def stacking_of(plan: Route, margins: Sequence[Interval] = ()) -> Stacking | None:
    """How the box that a worker needs is stacked, if it keeps its whole block; None where the pieces are no stack."""
    if plan.needed is None or plan.owned is None or len(plan.kept) != 1:
        return None
    if plan.kept[0].source.shape != plan.owned.shape:
        return None
    shape = plan.needed.shape
    pieces = [plan.kept[0].target, *(piece.target for message in plan.receives for piece in message.pieces)]
    dims = {d for d, n in enumerate(shape) if any(piece.shape[d] != n for piece in pieces)}
    dims |= {d for d, margin in enumerate(margins) if any(margin)}
    if len(dims) != 1:
        return None
    (dim,) = dims
    order = sorted(range(len(pieces)), key=lambda i: pieces[i].start[dim])
    before, after = ((*shape[:dim], n, *shape[dim + 1 :]) for n in (margins[dim] if margins else (0, 0)))
    return Stacking(dim, tuple(i - 1 for i in order), before, after)
