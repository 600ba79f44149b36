"""Which pieces a box is put together from, when the pieces were cut for another, larger box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .box import Box


@dataclass(frozen=True, slots=True)
class Meeting:
    """The common part of a box and of piece number `piece`: where it lies in each of them, `here` in the piece's tensor."""

    there: Box
    piece: int
    here: Box


def meetings(box: Box, pieces: Sequence[tuple[Box, Box]]) -> list[Meeting]:
    """Where a box meets pieces, of each of which is known where it would lie, and where it lies in its own tensor.

    >>> meetings(Box((2,), (5,)), [(Box((0,), (4,)), Box((10,), (14,)))])
    [Meeting(there=Box(start=(0,), stop=(2,)), piece=0, here=Box(start=(12,), stop=(14,)))]
    """
    found: list[Meeting] = []
    for number, (target, source) in enumerate(pieces):
        if (common := box.intersect(target)) is not None:
            found.append(Meeting(common.relative_to(box), number, common.relative_to(target).shifted(source.start)))
    return found
