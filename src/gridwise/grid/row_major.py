"""Boxes of a row-major block, in terms of its flat index.

A box is contiguous if its span in the flat index has no more elements than the box. A flat range is a few boxes:

    block 4 x 5, elements 3..17          . . . X X
                                         X X X X X        three boxes: end of a row, whole rows, start of a row
                                         X X X X X
                                         X X X . .

Checkpoints read and write such boxes, and deferred initialisation draws random numbers for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .box import Box, Shape
from .cuts import Interval


def strides_of(shape: Sequence[int]) -> Shape:
    """The distance in the flat index between neighbours along each dim.

    >>> strides_of((4, 5))
    (5, 1)
    """
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def flat_span(shape: Sequence[int], box: Box) -> Interval:
    """The interval of the flat index from the first to the last element of a non-empty box.

    >>> flat_span((4, 5), Box((1, 3), (3, 5)))
    (8, 15)
    """
    strides = strides_of(shape)
    first = sum(a * stride for a, stride in zip(box.start, strides, strict=True))
    return first, 1 + sum((b - 1) * stride for b, stride in zip(box.stop, strides, strict=True))


def boxes_of_range(shape: Shape, start: int, stop: int) -> Iterator[Box]:
    """The elements ``[start, stop)`` of the flat index as disjoint boxes, in that order.

    >>> list(boxes_of_range((4, 5), 3, 10))
    [Box(start=(0, 3), stop=(1, 5)), Box(start=(1, 0), stop=(2, 5))]
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    inner = shape[1:]
    size = math.prod(inner)
    row, before = divmod(start, size)
    last, after = divmod(stop, size)
    if row == last:
        yield from _in_row(row, inner, before, after)
        return
    if before:
        yield from _in_row(row, inner, before, size)
        row += 1
    if row < last:
        yield Box((row, *(0 for _ in inner)), (last, *inner))
    if after:
        yield from _in_row(last, inner, 0, after)


def _in_row(row: int, inner: Shape, start: int, stop: int) -> Iterator[Box]:
    for box in boxes_of_range(inner, start, stop):
        yield Box((row, *box.start), (row + 1, *box.stop))
