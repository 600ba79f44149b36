"""A board in shared memory: every worker of the machine writes a row of a few numbers, and every worker reads all rows.

    writer    writes its row k into its slot k mod 2 ──► count = k + 1 ──► rings the others' doorbells, wakes sleepers
    reader    waits until all counts are > k ──► copies all rows

This takes one step for any number of workers, where mailboxes would take log2(n), each with its own torch calls. A slot is
rewritten only after all workers have written the following row, hence have read this one. It is only for collectives over
all workers of the machine: their calls are then in the same order on each.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from . import futex
from .mailbox import KIND_BITS, KINDS, MASK, mismatch, spelt
from .mailboxes import Mailboxes
from .segment import Segment

AGREEMENT = KINDS.index("an agreement") << KIND_BITS


class Board:
    """This worker's view of the board; `places` holds all workers of the machine, in the order of their ranks."""

    def __init__(self, segment: Segment, places: dict[int, int], me: int, boxes: Mailboxes) -> None:
        layout = segment.layout
        self._boxes, self._words, self._rows = boxes, segment.words, segment.board
        self._numbers = segment.board.numpy().view(np.int64)
        self._mine = places[me]
        self._at = layout.written(self._mine) // 4
        self._others = [(rank, layout.written(place) // 4) for rank, place in places.items() if rank != me]
        self._count = 0

    def all_gather(self, row: Tensor, kind: str) -> Tensor:
        """The flat rows of all workers in rank order; all of one length and dtype, of at most `segment.BOARD` bytes."""
        turn, size = self._count & 1, row.nbytes
        self._boxes.check_usable()
        if size:
            self._rows[self._mine, turn, :size].view(row.dtype).copy_(row)
        self._meet(KINDS.index(kind) << KIND_BITS | size, turn)
        return self._rows[:, turn, :size].clone().view(row.dtype)

    def all_max(self, values: np.ndarray) -> None:
        """Replace the flat int64 array, of at most `segment.BOARD` bytes, by its element-wise maximum over all workers."""
        turn, count = self._count & 1, len(values)
        self._boxes.check_usable()
        self._numbers[self._mine, turn, :count] = values
        self._meet(AGREEMENT | values.nbytes, turn)
        np.maximum.reduce(self._numbers[:, turn, :count], 0, out=values)

    def _meet(self, label: int, turn: int) -> None:
        """Announce that this worker's row is written, wait until all rows are, and check that their labels agree."""
        boxes, words = self._boxes, self._words
        words[self._at + 1 + turn] = label
        if futex.NEEDS_FENCE:
            futex.fence()
        self._count = (self._count + 1) & MASK
        words[self._at] = self._count
        boxes.ring_sleepers()
        boxes.wait_until(self._missing)
        if futex.NEEDS_FENCE:
            futex.fence()
        for rank, at in self._others:
            if (theirs := words[at + 1 + turn]) != label:
                raise mismatch(rank, f"takes part in {spelt(theirs)}", f"takes part in {spelt(label)}")

    def _missing(self) -> list[int]:
        """The workers that have not written their row yet."""
        words, count = self._words, self._count
        return [rank for rank, at in self._others if (words[at] - count) & MASK > MASK >> 1]
