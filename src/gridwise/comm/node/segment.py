"""The memory that the workers of one machine share: words that count messages, and slots that hold them.

    words    for each worker a doorbell, and next to it the device that it uses;
             for each pair (from, to) the numbers of messages sent and taken;
             for each worker the number of rows it has written on the board
    slots    two for each pair (from, to)
    board    two rows for each worker, which all others read

It is an anonymous file: it has no name that a killed worker could leave behind, no limit but the machine's memory, and
occupies only what has been written. The first worker of the machine creates it, the others open it through /proc, which
only processes of the same user can do, and its descriptor is closed as soon as all have mapped it.
"""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 21
"""Largest slot, in bytes: small enough for the cache, large enough to make the bookkeeping per slot cheap."""
ROOM = 1 << 28
"""Upper limit for all slots of a machine together, in bytes."""
MIN_SLOT = 1 << 14
"""Smallest slot, in bytes: if there are so many workers that slots would be smaller, the transport's own way is better."""
LINE = 64
"""Bytes of a cache line: words that different workers write are in different lines."""
BOARD = 1 << 13
"""Largest row of the board, in bytes."""
SECRET = 16


@dataclass(frozen=True)
class SegmentLayout:
    """Offsets, in bytes, in the shared memory of `workers` workers."""

    workers: int

    @property
    def chunk(self) -> int:
        """Bytes of a slot."""
        return min(CHUNK, ROOM // (2 * self.workers**2) & -4096)

    def doorbell(self, worker: int) -> int:
        return LINE * (1 + worker)

    def sent(self, source: int, target: int) -> int:
        return LINE * (1 + self.workers + source * self.workers + target)

    def taken(self, source: int, target: int) -> int:
        return self.sent(source, target) + LINE * self.workers**2

    def written(self, worker: int) -> int:
        """Offset of a worker's count of board rows, followed by the labels of the last two, and whether it sleeps."""
        return self.sent(0, 0) + LINE * (2 * self.workers**2 + worker)

    def slots(self, source: int, target: int) -> int:
        """Offset of the two consecutive slots for messages from one worker to another."""
        words = -(-LINE * (1 + 2 * self.workers + 2 * self.workers**2) // 4096) * 4096
        return words + (source * self.workers + target) * 2 * self.chunk

    @property
    def board(self) -> int:
        return self.slots(self.workers, 0)

    @property
    def size(self) -> int:
        return self.board + self.workers * 2 * BOARD


class Segment:
    """The shared memory, mapped into this process."""

    def __init__(self, file: int, workers: int) -> None:
        self.layout = SegmentLayout(workers)
        self._map = mmap.mmap(file, self.layout.size)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.words = memoryview(self._map).cast("I")
        self.address = self.bytes.data_ptr()

    def slots(self, source: int, target: int) -> Tensor:
        """The two slots for messages from one worker to another, as bytes."""
        start = self.layout.slots(source, target)
        return self.bytes[start : start + 2 * self.layout.chunk]

    @property
    def board(self) -> Tensor:
        """Two rows of bytes for each worker."""
        return self.bytes[self.layout.board : self.layout.size].view(self.layout.workers, 2, BOARD)

    @property
    def secret(self) -> bytes:
        return bytes(self._map[:SECRET])


@dataclass
class Offer:
    """A new segment whose file stays open until the others have mapped it."""

    segment: Segment
    file: int

    @classmethod
    def make(cls, workers: int) -> Offer:
        file = os.memfd_create("gridwise")
        try:
            os.ftruncate(file, SegmentLayout(workers).size)
            segment = Segment(file, workers)
        except OSError:
            os.close(file)
            raise
        segment._map[:SECRET] = secrets.token_bytes(SECRET)
        return cls(segment, file)

    @property
    def ticket(self) -> bytes:
        """The bytes that another worker needs to `accept` the segment."""
        return f"{os.getpid()} {self.file} {self.segment.secret.hex()}".encode()

    def close(self) -> None:
        os.close(self.file)


def accept(ticket: bytes, workers: int) -> Segment:
    """Map the segment that another worker of this machine offers."""
    process, file, secret = ticket.decode().split()
    found = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(found).st_size != SegmentLayout(workers).size:
            raise OSError("the file of another worker is not the one that it offered")
        segment = Segment(found, workers)
    finally:
        os.close(found)
    if segment.secret.hex() != secret:
        raise OSError("the memory of another worker is not what it offered")
    return segment


def machine() -> bytes:
    """An identifier of this machine, process namespace and user: workers for which it is equal can share memory."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}".encode()
