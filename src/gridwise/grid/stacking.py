"""Boxes that are stacks: own rows and received rows one after another along a single dim.

This is the case for a grid that cuts one dim of space. Where such a box extends equally far before and after the own
rows, its borders can be computed separately from the block (`borders_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cuts import Interval
from .route import Route

OWN = -1


@dataclass(frozen=True)
class Stacking:
    """The order along `dim` of received pieces (by number) and the worker's `OWN`."""

    dim: int
    order: tuple[int, ...]


def stacking_of(plan: Route) -> Stacking | None:
    """How the box that a worker needs is stacked around its whole block; None if the pieces are not a stack."""
    if plan.needed is None or plan.owned is None or len(plan.kept) != 1:
        return None
    if plan.kept[0].source.shape != plan.owned.shape:
        return None
    shape = plan.needed.shape
    pieces = [plan.kept[0].target, *(piece.target for message in plan.receives for piece in message.pieces)]
    dims = {d for d, n in enumerate(shape) if any(piece.shape[d] != n for piece in pieces)}
    if len(dims) != 1:
        return None
    (dim,) = dims
    order = sorted(range(len(pieces)), key=lambda i: pieces[i].start[dim])
    return Stacking(dim, tuple(i - 1 for i in order))


@dataclass(frozen=True)
class Side:
    """One border of a block: which side it is on, and the number of the received piece beyond it."""

    is_first: bool
    number: int


@dataclass(frozen=True)
class Borders:
    """A stack with `reach` rows on either side of the own ones, each side being one received piece or a margin."""

    dim: int
    reach: int
    sides: tuple[Side, ...]
    """The sides with a received piece."""


def borders_of(plan: Route, margins: Sequence[Interval] = ()) -> Borders | None:
    """The borders of a stack whose messages have one piece each and whose sides are equally long; else None."""
    stacking = stacking_of(plan)
    if stacking is None or any(len(message.pieces) != 1 for message in (*plan.sends, *plan.receives)):
        return None
    own = stacking.order.index(OWN)
    around = [(True, stacking.order[:own]), (False, stacking.order[own + 1 :])]
    if any(len(numbers) > 1 for _, numbers in around):
        return None
    received = [sum(plan.receives[i].pieces[0].target.shape[stacking.dim] for i in numbers) for _, numbers in around]
    margin = margins[stacking.dim] if margins else (0, 0)
    reach = received[0] + margin[0]
    is_either = not any(rows and filled for rows, filled in zip(received, margin, strict=True))
    if not reach or reach != received[1] + margin[1] or not is_either:
        return None
    return Borders(stacking.dim, reach, tuple(Side(is_first, i) for is_first, numbers in around for i in numbers))
