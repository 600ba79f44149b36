"""The workers of this machine: finding them, and sums, copies and agreements among them through shared memory.

A few numbers go over the board if all workers of the machine take part (`board`), else by dissemination
(`messages.dissemination`). Larger tensors are summed in chunks (`messages.chunked_sum`): each worker sums one chunk over all
workers, in rank order, and sends it to the others. So a sum is bitwise the same on all workers, and in every run.
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
from ..messages.chunked_sum import ChunkedSum, PeerTensors
from ..settings import is_on
from . import futex
from .board import Board
from .device_box import SLOT
from .mailbox import KINDS, Delivery
from .mailboxes import Mailboxes, Moves
from .segment import BOARD, MIN_SLOT, Offer, Segment, SegmentLayout, accept, machine

FEW = 1 << 13
"""Bytes up to which every worker gathers and sums everything; above, each worker sums one chunk."""

Team = tuple[int, ...]


class Meets(Protocol):
    """The part of a transport that `find_node` needs."""

    rank: int
    size: int

    @property
    def everyone(self) -> Team: ...

    def gather_bytes(self, data: bytes, team: Team, what: str = ...) -> list[bytes]: ...


class Node:
    """This worker's connection to the others of its machine; all ranks are those of the transport."""

    def __init__(
        self, segment: Segment, places: dict[int, int], me: int, processes: dict[int, int], min_bytes: int
    ) -> None:
        self._boxes = Mailboxes(segment, places, me, processes, spins=cores() >= len(places))
        self._board = Board(segment, places, me, self._boxes)
        self._places, self._me = places, me
        self._chunk = segment.layout.chunk
        self.min_bytes = min_bytes
        """Bytes from which host messages and sums use the node; on a device all do."""

    def reaches(self, peer: int, size: int, on_device: bool = False) -> bool:
        """Whether a message of `size` bytes to or from `peer` uses the node; sender and receiver decide alike."""
        return (on_device or size >= self.min_bytes) and peer in self._places

    def covers(self, team: Team, size: int, on_device: bool = False) -> bool:
        """Whether a collective of `size` bytes over a team uses the node; all of the team decide alike."""
        return (on_device or size >= self.min_bytes) and len(team) > 1 and self._places.keys() >= set(team)

    def post(self, sends: Moves, receives: Moves, dtype: torch.dtype, add: bool = False) -> Delivery:
        """Start sending views to peers and receiving into views from peers, by copying or adding."""
        return self._boxes.post(sends, receives, dtype, add)

    def _swap(self, sends: Moves, receives: Moves, dtype: torch.dtype, kind: str) -> None:
        self._boxes.post(sends, receives, dtype, kind=KINDS.index(kind)).wait()

    def meanwhile(self, move_on: Callable[[], object]) -> None:
        """Call `move_on` from time to time during waits: the library's own messages may progress only inside its calls."""
        self._boxes.meanwhile = move_on

    def cut(self) -> None:
        """End all waits with an error and refuse new calls; may be called from any thread."""
        self._boxes.is_cut = True

    # Collectives: called by all workers of a team

    def all_max(self, values: np.ndarray, team: Team) -> None:
        """Replace the int64 array by its element-wise maximum over the team."""
        if self._is_for_board(team, values.nbytes):
            self._board.all_max(values.reshape(-1))
            return
        dissemination.all_max(values, team, self._me, partial(self._swap_two, "an agreement"))

    def all_gather(self, row: Tensor, team: Team, table: Tensor | None = None) -> Tensor:
        """The flat rows of the team's workers, of one length, in its order; may use `table`, which already holds `row`."""
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
            ChunkedSum(into, part, team, self._me, self._post_shares, room=room).wait()

    def begin_sum(self, x: Tensor, team: Team) -> ChunkedSum:
        """Start replacing the contiguous `x`, of more than `FEW` bytes, by its sum over the team."""
        flat = x.view(-1)
        return ChunkedSum(flat, flat, team, self._me, self._post_shares)

    def _post_shares(self, sends: PeerTensors, receives: PeerTensors) -> Delivery:
        dtype = (*sends, *receives)[0][1].dtype
        return self._boxes.post(
            [(rank, [x]) for rank, x in sends], [(rank, [x]) for rank, x in receives], dtype, kind=KINDS.index("a sum")
        )

    def copy_from(self, x: Tensor, root: int, team: Team) -> None:
        """Fill the contiguous `x` with that of `root`, along a binomial tree."""
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
        """The `data` of each worker of the team, in its order; all workers know `sizes`."""
        row = torch.zeros(max(1, *sizes), dtype=torch.uint8, device="cpu")
        if data:
            row[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = self.all_gather(row, team)
        return [bytes(row[:size].numpy()) for row, size in zip(rows, sizes, strict=True)]


def find_node(transport: Meets, min_bytes: int) -> Node | None:
    """The node of this worker's machine, or None if it shares no memory with others. Collective over all workers."""
    if transport.size == 1:
        return None
    what, everyone = "looking for workers of the same machine", transport.everyone
    mine = _whereabouts()
    said = transport.gather_bytes(mine, everyone, what)
    if not any(said):
        return None
    here = [rank for rank in everyone if said[rank].partition(b" ")[2] == mine.partition(b" ")[2] and mine]
    is_first, is_near = here[:1] == [transport.rank], len(here) > 1 and SegmentLayout(len(here)).chunk >= MIN_SLOT
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
    return Node(segment, places, transport.rank, processes, min_bytes)


def _whereabouts() -> bytes:
    """This worker's process and machine; empty if it cannot share memory, which the others must learn too."""
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
