"""Shared memory between MPI workers of one node: large parcels and sums without MPI's own copies.

A message between processes of a node is copied twice, into shared memory and out of it, and with packing and unpacking
four times. Here the sender packs straight into a shared outbox, piece by piece, and the receiver unpacks straight out of
it while the piece is still in the cache. Empty MPI messages say when a piece is ready; two slots for each pair of workers
let one piece be packed while the last is unpacked.

    round k    pack piece k into slot k mod 2 ──► tell the peer, hear from it ──► unpack its piece k

Hearing of round k + 1 means that the peer has unpacked round k, so slot k mod 2 is free again at round k + 2; the count of
rounds goes on from call to call. Sums work the same way, with a barrier instead of messages: everyone adds all slots in
the same order, so the sum is bitwise the same on all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest

import torch
from mpi4py import MPI
from torch import Tensor

from .parcels import Views, chunks, parts, put
from .settings import is_on
from .transport import Team

LARGE = 1 << 18
"""Bytes from which a parcel or a sum takes this road; below, a plain message is as fast."""
CHUNK = 1 << 21
"""Bytes of a slot, at most: small enough for the cache, large enough to make the notes about it cheap."""
ROOM = 1 << 28
"""Bytes of all slots of a node, at most; a quarter of what its shared memory has free, if that is less."""
LEAST = 1 << 17
MOST = 4
"""The largest team that sums this way: everyone reads everyone's slots."""
TAG = 8

Moves = Sequence[tuple[int, Views]]


class SharedMemory:
    """The slots of the workers of this node, numbered by their ranks in the world."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self._node = MPI.Intracomm(world.Split_type(MPI.COMM_TYPE_SHARED))
        mine = [int(rank) for rank in self._node.allgather(world.Get_rank())]
        self._places = {rank: place for place, rank in enumerate(mine)}
        self._world, self._me = world, world.Get_rank()
        boxes = len(mine) + 1  # one for each worker, and one for sums
        self._chunk = int(self._node.bcast(min(CHUNK, _room() // (2 * boxes * len(mine)) & -4096)))
        if self._chunk < LEAST:
            raise OSError("too little shared memory on this node")
        self._window = MPI.Win.Allocate_shared(2 * self._chunk * boxes, 1, comm=self._node)
        self._window.Lock_all()
        self._slots = [_slots(self._window, place, boxes, self._chunk) for place in range(len(mine))]
        self._rounds = dict.fromkeys(mine, 0)

    def reaches(self, peer: int) -> bool:
        return peer in self._places

    def sums_for(self, team: Team) -> bool:
        return 2 <= len(team) <= MOST and all(rank in self._places for rank in team)

    def all_sum(self, total: Tensor, x: Tensor, team: Team, comm: MPI.Intracomm) -> None:
        """Write the sum of the contiguous `x` over the team into `total`, which may be `x` itself."""
        size = self._chunk // x.element_size()
        box = len(self._places)
        slots = [self._slots[self._places[rank]][box] for rank in team]
        mine = self._slots[self._places[self._me]][box]
        flat, out = x.view(-1), total.view(-1)
        for turn, start in enumerate(range(0, x.numel(), size)):
            piece, place = flat[start : start + size], out[start : start + size]
            _typed(mine[turn % 2], piece).copy_(piece)
            self._sync(comm.Barrier)
            first, second, *others = (_typed(slot[turn % 2], piece) for slot in slots)
            torch.add(first, second, out=place)
            for other in others:
                place.add_(other)
        comm.Barrier()  # nobody leaves, and writes for another team, while others still read

    def move(self, sends: Moves, receives: Moves, dtype: torch.dtype, add: bool) -> None:
        """Send and receive all parcels of `dtype`; the peers call this at the same time.

        What is received into may be of a wider dtype, in which halves are added up.
        """
        limit = self._chunk // dtype.itemsize
        there = {peer: list(chunks(views, limit)) for peer, views in sends}
        back = {peer: list(chunks(views, limit)) for peer, views in receives}
        pairs = {peer: list(zip_longest(there.get(peer, ()), back.get(peer, ()))) for peer in sorted({*there, *back})}
        for k in range(max(map(len, pairs.values()))):
            now = {peer: rounds[k] for peer, rounds in pairs.items() if k < len(rounds)}
            for peer, (out, _) in now.items():
                if out:
                    self._pack(out, self._slot(self._me, peer).view(dtype))
            self._sync(lambda peers=tuple(now): self._tell(peers))
            for peer, (_, into) in now.items():
                if into:
                    self._unpack(into, self._slot(peer, self._me).view(dtype), add)
                self._rounds[peer] += 1

    def close(self) -> None:
        self._window.Unlock_all()
        self._window.Free()
        self._node.Free()

    def _slot(self, owner: int, other: int) -> Tensor:
        """The slot for this round in the outbox of `owner` for `other`."""
        turn = self._rounds[other if owner == self._me else owner] % 2
        return self._slots[self._places[owner]][self._places[other]][turn]

    def _pack(self, views: Views, slot: Tensor) -> None:
        for view, part in zip(views, parts(slot[: _volume(views)], views), strict=True):
            part.copy_(view)

    def _unpack(self, views: Views, slot: Tensor, add: bool) -> None:
        for view, part in zip(views, parts(slot[: _volume(views)], views), strict=True):
            put(view, part, add)

    def _tell(self, peers: tuple[int, ...]) -> None:
        requests = [self._world.Irecv(_NOTE, peer, TAG) for peer in peers]
        requests += [self._world.Isend(_NOTE, peer, TAG) for peer in peers]
        MPI.Request.Waitall(requests)

    def _sync(self, talk: object) -> None:
        self._window.Sync()
        talk()  # type: ignore[operator]
        self._window.Sync()


_NOTE = bytearray(0)


def _room() -> int:
    """Bytes that slots may take: a page that is written beyond the size of /dev/shm would kill the process."""
    try:
        free = os.statvfs("/dev/shm")
    except OSError:
        return ROOM
    return min(ROOM, free.f_bavail * free.f_frsize // 4)


def _slots(window: MPI.Win, place: int, boxes: int, chunk: int) -> list[tuple[Tensor, Tensor]]:
    """The outboxes of the worker at `place`, two slots each, as bytes."""
    memory = torch.frombuffer(window.Shared_query(place)[0], dtype=torch.uint8).view(boxes, 2, chunk)
    return [(box[0], box[1]) for box in memory]


def _typed(slot: Tensor, like: Tensor) -> Tensor:
    """The start of a slot as a flat tensor of the size and dtype of `like`."""
    return slot.view(like.dtype)[: like.numel()]


def _volume(views: Views) -> int:
    return sum(view.numel() for view in views)


def shared_memory(world: MPI.Intracomm) -> SharedMemory | None:
    """The shared memory of this node's workers, or None if there is none to be had; the same answer on all of them."""
    if world.Get_size() == 1 or not is_on("GRIDWISE_SHARED_MEMORY"):
        return None
    try:
        shared = SharedMemory(world)
    except (MPI.Exception, OSError):
        shared = None
    if world.allreduce(shared is not None, MPI.LAND):
        return shared
    if shared is not None:
        shared.close()
    return None
