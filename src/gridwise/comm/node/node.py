"""The workers of this machine: who they are, and sums, copies and agreements among them, by messages in shared memory.

Few numbers go over a board where all take part (`board`), else by dissemination (`messages.dissemination`). Many are summed in
shares (`messages.share_sum`): everyone adds up one share of all, in the order of the ranks, and sends it to the others. So a
sum is bitwise the same on all workers, and the same again in the next run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...log import logger
from ..launching.cores import cores
from ..messages import dissemination
from ..messages.share_sum import Parcels, ShareSum
from ..settings import is_on
from . import futex
from .board import Board
from .device_box import SLOT
from .mailbox import KINDS, Delivery
from .mailboxes import Mailboxes, Moves
from .segment import BOARD, LEAST, Offer, Segment, SegmentLayout, accept, machine

FEW = 1 << 13
"""Bytes up to which everyone gets everyone's numbers and adds them up; above, everyone adds up a share."""

Team = tuple[int, ...]


class Meets(Protocol):
    """A transport, as far as it is needed to find out who is near."""

    rank: int
    size: int

    @property
    def everyone(self) -> Team: ...

    def gather_bytes(self, data: bytes, team: Team, what: str = ...) -> list[bytes]: ...


class Node:
    """This worker's way to the others of its machine; all ranks are those of the transport."""

    def __init__(
        self, segment: Segment, places: dict[int, int], me: int, processes: dict[int, int], least: int
    ) -> None:
        self._boxes = Mailboxes(segment, places, me, processes, spins=cores() >= len(places))
        self._board = Board(segment, places, me, self._boxes)
        self._places, self._me = places, me
        self._chunk = segment.layout.chunk
        self.least = least
        """Bytes from which a message or a sum on the host comes this way; on a device all do."""

    def reaches(self, peer: int, size: int, on_device: bool = False) -> bool:
        """Whether a message of `size` bytes to or from a worker goes this way; sender and receiver decide alike."""
        return (on_device or size >= self.least) and peer in self._places

    def covers(self, team: Team, size: int, on_device: bool = False) -> bool:
        """Whether a collective of `size` bytes over a team goes this way; all of the team decide alike."""
        return (on_device or size >= self.least) and len(team) > 1 and self._places.keys() >= set(team)

    def post(self, sends: Moves, receives: Moves, dtype: torch.dtype, add: bool = False) -> Delivery:
        """Start sending views to workers and receiving into views from workers, copied or added there."""
        return self._boxes.post(sends, receives, dtype, add)

    def _swap(self, sends: Moves, receives: Moves, dtype: torch.dtype, kind: str) -> None:
        self._boxes.post(sends, receives, dtype, kind=KINDS.index(kind)).wait()

    def meanwhile(self, move_on: Callable[[], object]) -> None:
        """Let whoever waits here call this now and then: the library's own messages may move only when it is called."""
        self._boxes.meanwhile = move_on

    def cut(self) -> None:
        """Free whoever waits here, from any thread; begin nothing new."""
        self._boxes.is_cut = True

    # Collectives: all of a team enter together

    def all_max(self, values: np.ndarray, team: Team) -> None:
        """Replace the int64 array by its maximum over the team."""
        if self._is_for_board(team, values.nbytes):
            self._board.all_max(values.reshape(-1))
            return
        dissemination.all_max(values, team, self._me, partial(self._swap_two, "an agreement"))

    def all_gather(self, row: Tensor, team: Team, table: Tensor | None = None) -> Tensor:
        """The flat rows of all workers of the team, of one length, in its order; perhaps in `table`, where `row` lies."""
        if not row.is_cuda and self._is_for_board(team, row.nbytes):
            return self._board.all_gather(row, "a gathering")
        return dissemination.all_gather(row, team, self._me, partial(self._swap_two, "a gathering"), table)

    def _is_for_board(self, team: Team, nbytes: int) -> bool:
        return nbytes <= BOARD and len(team) == len(self._places)

    def _swap_two(self, kind: str, to: int, x: Tensor, source: int, into: Tensor) -> None:
        self._swap([(to, [x])], [(source, [into])], x.dtype, kind)

    def all_sum(self, total: Tensor, x: Tensor, team: Team) -> None:
        """Write the sum of the contiguous `x` over the team into the contiguous `total`, which may be `x` itself."""
        flat, out = x.view(-1), total.view(-1)
        if x.nbytes <= FEW:
            if x.is_cuda and len(team) == 2:
                other, theirs = team[1 - team.index(self._me)], torch.empty_like(flat)
                self._swap_two("a gathering", other, flat, other, theirs)
                torch.add(flat, theirs, out=out)
            else:
                torch.sum(self.all_gather(flat, team), 0, dtype=x.dtype, out=out)
            return
        size = min(x.numel(), len(team) * (SLOT if x.is_cuda else self._chunk) // x.element_size())
        room = x.new_empty((len(team) - 1, -(-size // len(team))))
        for start in range(0, x.numel(), size):
            part, into = flat[start : start + size], out[start : start + size]
            ShareSum(into, part, team, self._me, self._post_shares, room=room).wait()

    def begin_sum(self, x: Tensor, team: Team) -> ShareSum:
        """Start replacing the contiguous `x`, of more than `FEW` bytes, by its sum over the team."""
        flat = x.view(-1)
        return ShareSum(flat, flat, team, self._me, self._post_shares)

    def _post_shares(self, sends: Parcels, receives: Parcels) -> Delivery:
        dtype = (*sends, *receives)[0][1].dtype
        return self._boxes.post(
            [(rank, [x]) for rank, x in sends], [(rank, [x]) for rank, x in receives], dtype, kind=KINDS.index("a sum")
        )

    def copy_from(self, x: Tensor, root: int, team: Team) -> None:
        """Fill the contiguous `x` with that of `root`, which tells some, who tell others."""
        n, first = len(team), team.index(root)
        place = (team.index(self._me) - first) % n
        reach = 1
        while reach < n:
            if place < reach and place + reach < n:
                self._swap([(team[(place + reach + first) % n], [x])], [], x.dtype, "a copy")
            elif reach <= place < 2 * reach:
                self._swap([], [(team[(place - reach + first) % n], [x])], x.dtype, "a copy")
            reach *= 2

    def gather_bytes(self, data: bytes, sizes: Sequence[int], team: Team) -> list[bytes]:
        """What each worker of the team gave, in its order; `sizes` are known to all."""
        row = torch.zeros(max(1, *sizes), dtype=torch.uint8, device="cpu")
        if data:
            row[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = self.all_gather(row, team)
        return [bytes(row[:size].numpy()) for row, size in zip(rows, sizes, strict=True)]


def find_node(transport: Meets, least: int) -> Node | None:
    """The way to the workers of this machine, or None if there is none to be had. Collective over all workers."""
    if transport.size == 1:
        return None
    what, everyone = "looking for workers of the same machine", transport.everyone
    mine = _whereabouts()
    said = transport.gather_bytes(mine, everyone, what)
    if not any(said):
        return None
    here = [rank for rank in everyone if said[rank].partition(b" ")[2] == mine.partition(b" ")[2] and mine]
    is_first, is_near = here[:1] == [transport.rank], len(here) > 1 and SegmentLayout(len(here)).chunk >= LEAST
    offer = _offer(len(here)) if is_first and is_near else None
    tickets = transport.gather_bytes(offer.ticket if offer else b"", everyone, what)
    segment = offer.segment if offer else None
    if is_near and segment is None:
        try:
            segment = accept(tickets[here[0]], len(here))
        except (OSError, ValueError) as error:
            logger.info("no shared memory with worker %d: %s", here[0], error)
    failed = is_near and segment is None
    votes = transport.gather_bytes(b"failed" if failed else b"", everyone, what)
    if offer is not None:
        offer.close()
    if not is_near or segment is None or any(votes[rank] for rank in here):
        return None
    places = {rank: place for place, rank in enumerate(here)}
    processes = {rank: int(said[rank].partition(b" ")[0]) for rank in here}
    return Node(segment, places, transport.rank, processes, least)


def _whereabouts() -> bytes:
    """This worker's process and machine; nothing if it shares no memory, which the others must hear, too."""
    if not is_on("GRIDWISE_SHARED_MEMORY") or not futex.is_available():
        return b""
    try:
        return f"{os.getpid()} ".encode() + machine()
    except OSError as error:
        logger.info("this machine cannot be told from others: %s", error)
        return b""


def _offer(workers: int) -> Offer | None:
    try:
        return Offer.make(workers)
    except OSError as error:
        logger.info("no shared memory on this machine: %s", error)
        return None
