"""Messages between workers of one machine, through two slots in each direction.

    sender      waits until at most one message is not taken ──► packs into slot k mod 2 ──► sent = k + 1 ──► rings
    receiver    waits until sent > k ──► unpacks straight into its place ──► taken = k + 1 ──► rings

A message that is longer than a slot goes in pieces, packed by one worker while the last piece is unpacked by the other.
Between two workers messages keep their order, whoever is waited for first: each mailbox has a queue for each direction,
and a wait moves on whatever can be moved. A worker that has nothing to move sleeps until somebody rings its doorbell;
where every worker has a core of its own, it looks for a moment first, since waking takes longer than most messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from ..messages.packing import Views, chunks, parts, put
from . import futex
from .device_box import SLOT, DeviceBox, Devices
from .segment import Segment

Moves = Sequence[tuple[int, Views]]

SLICE = 0.05
"""Seconds that a worker sleeps before it looks whether its connections were cut."""
LIFE_SECONDS = 1.0
"""Seconds of waiting after which, and how often, a worker looks whether the others live."""
SPIN_SECONDS = 1e-4
"""How long a worker looks before it sleeps, if it has a core of its own."""
MASK = 0xFFFFFFFF


class NodeError(RuntimeError):
    """A wait for a worker of this machine that will not end."""


class Delivery:
    """Messages on their way; waited for as a whole."""

    __slots__ = ("boxes", "left")

    def __init__(self, boxes: Mailboxes, left: int) -> None:
        self.boxes, self.left = boxes, left

    def wait(self) -> None:
        if self.left:
            self.boxes.wait_for(self)


class _Job:
    """One message, in or out: what is left of it, in pieces that fit into a slot."""

    __slots__ = ("add", "delivery", "dtype", "is_direct", "pieces", "views")

    def __init__(self, views: Views, dtype: torch.dtype, add: bool, delivery: Delivery) -> None:
        self.views, self.dtype, self.add, self.delivery = views, dtype, add, delivery
        self.pieces: deque[Views] | None = None
        self.is_direct = False
        """Whether it stays on the device, and only a note goes through the mailbox."""

    def begin(self, box: Mailbox) -> bool:
        """Cut it into pieces; whether that could be done, for which the other's device must be known."""
        views, limit = self.views, box.chunk
        if views and views[0].is_cuda:
            is_direct = box.device.is_direct
            if is_direct is None:
                return False
            self.is_direct, limit = is_direct, SLOT if is_direct else limit
        limit //= self.dtype.itemsize
        small = len(views) == 1 and views[0].numel() <= limit
        self.pieces = deque((views,) if small else chunks(views, limit)) or deque(((),))
        return True


class Mailbox:
    """The post between this worker and one other."""

    def __init__(self, segment: Segment, me: int, other: int, devices: Devices) -> None:
        layout = segment.layout
        self.chunk, self.device = layout.chunk, DeviceBox(devices, other)
        self._words = segment.words
        self._sent_at, self._taken_at = layout.sent(me, other) // 4, layout.taken(other, me) // 4
        self._their_taken_at, self._their_sent_at = layout.taken(me, other) // 4, layout.sent(other, me) // 4
        self._sent, self._taken = self._words[self._sent_at], self._words[self._taken_at]
        self._slots_out = {torch.uint8: [segment.slot(me, other, turn) for turn in (0, 1)]}
        self._slots_in = {torch.uint8: [segment.slot(other, me, turn) for turn in (0, 1)]}
        self.outgoing: deque[_Job] = deque()
        self.incoming: deque[_Job] = deque()
        door = layout.doorbell(other)
        self._door_at, self._door = door // 4, segment.address + door
        self._ring = (me & 0x3FF) << 22
        """The next value of the other's doorbell: unlike that of any other worker, so that each ring changes it."""

    def advance(self) -> bool:
        """Move what can be moved; whether anything was."""
        words, moved = self._words, False
        outgoing, incoming = self.outgoing, self.incoming
        while outgoing and (self._sent - words[self._their_taken_at]) & MASK < 2:
            job = outgoing[0]
            if job.pieces is None and not job.begin(self):
                break
            self._pack(job)
            if not job.pieces:
                outgoing.popleft()
                job.delivery.left -= 1
            moved = True
        while incoming and words[self._their_sent_at] != self._taken:
            job = incoming[0]
            if job.pieces is None and not job.begin(self):
                break
            self._unpack(job)
            if not job.pieces:
                incoming.popleft()
                job.delivery.left -= 1
            moved = True
        return moved

    def _pack(self, job: _Job) -> None:
        assert job.pieces
        views, turn = job.pieces.popleft(), self._sent & 1
        if job.is_direct:
            self.device.pack(views, job.dtype, self._slots_out[torch.uint8][turn], turn)
        else:
            slot = _typed(self._slots_out, job.dtype)[turn]
            for view, part in zip(views, parts(slot[: _volume(views)], views), strict=True):
                part.copy_(view)
        self._sent = (self._sent + 1) & MASK
        self._words[self._sent_at] = self._sent
        self.knock()

    def _unpack(self, job: _Job) -> None:
        assert job.pieces
        views, turn = job.pieces.popleft(), self._taken & 1
        if job.is_direct:
            self.device.unpack(views, job.dtype, self._slots_in[torch.uint8][turn], turn, job.add)
        else:
            slot = _typed(self._slots_in, job.dtype)[turn]
            for view, part in zip(views, parts(slot[: _volume(views)], views), strict=True):
                put(view, part if view.device == part.device else part.to(view.device), job.add)
        was_full = (self._words[self._their_sent_at] - self._taken) & MASK >= 2
        self._taken = (self._taken + 1) & MASK
        self._words[self._taken_at] = self._taken
        if was_full:
            self.knock()  # it may wait for the slot

    def knock(self) -> None:
        """Wake the other worker, if it sleeps."""
        self._ring = self._ring & ~0x3FFFFF | (self._ring + 1) & 0x3FFFFF
        self._words[self._door_at] = self._ring
        futex.wake(self._door)


class Mailboxes:
    """The post between this worker and all others of its machine, by their ranks."""

    def __init__(
        self, segment: Segment, places: dict[int, int], me: int, processes: dict[int, int], spins: bool
    ) -> None:
        mine = places[me]
        self._devices = Devices(segment, mine)
        others = {rank: place for rank, place in places.items() if rank != me}
        self._boxes = {rank: Mailbox(segment, mine, place, self._devices) for rank, place in others.items()}
        self._words = segment.words
        door = segment.layout.doorbell(mine)
        self._door_at, self._door = door // 4, segment.address + door
        self._starts = {rank: started(process) for rank, process in processes.items() if rank != me}
        self._processes = processes
        self._spin = SPIN_SECONDS if spins else 0.0
        self._busy: set[Mailbox] = set()
        self.is_cut = False

    def post(self, sends: Moves, receives: Moves, dtype: torch.dtype, add: bool = False) -> Delivery:
        """Start sending and receiving. Views that are received into may be of a wider dtype, in which halves are added up."""
        if self.is_cut:
            raise NodeError("the connections of this worker were cut")
        delivery = Delivery(self, len(sends) + len(receives))
        for _, views in (*sends, *receives):
            if views and views[0].is_cuda:
                self._tell_device(views[0].device)
        for rank, views in receives:
            box = self._boxes[rank]
            box.incoming.append(_Job(views, dtype, add, delivery))
            self._busy.add(box)
        for rank, views in sends:
            box = self._boxes[rank]
            box.outgoing.append(_Job(views, dtype, add, delivery))
            self._busy.add(box)
            box.advance()
        return delivery

    def wait_for(self, delivery: Delivery) -> None:
        """Return when all messages of the delivery have left, or have arrived."""
        words, door, spin_until, look_at = self._words, self._door_at, 0.0, 0.0
        while True:
            seen = words[door]
            moved = False
            for box in self._busy:
                moved |= box.advance()
            if not delivery.left:
                break
            if moved:
                spin_until = 0.0
                continue
            now = time.perf_counter()
            if not spin_until:
                spin_until = now + self._spin
            if now < spin_until:
                continue
            look_at = look_at or now + LIFE_SECONDS
            futex.wait(self._door, seen, SLICE)
            if self.is_cut:
                raise NodeError("the connections of this worker were cut")
            if now > look_at:
                look_at = now + LIFE_SECONDS
                self._look_for_the_dead()
        self._busy = {box for box in self._busy if box.outgoing or box.incoming}

    def _tell_device(self, device: torch.device) -> None:
        if not self._devices.is_told:
            self._devices.tell(device)
            for box in self._boxes.values():
                box.knock()  # it may have something for this device

    def _look_for_the_dead(self) -> None:
        for box_rank, box in self._boxes.items():
            if (box.outgoing or box.incoming) and started(self._processes[box_rank]) != self._starts[box_rank]:
                box.advance()  # it may have sent its last message before it ended
                if box.outgoing or box.incoming:
                    raise NodeError(f"the process of worker {box_rank} is gone")


def started(process: int) -> str | None:
    """When a process of this machine was started, in the kernel's ticks; None if it has ended."""
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _typed(slots: dict[torch.dtype, list[Tensor]], dtype: torch.dtype) -> list[Tensor]:
    found = slots.get(dtype)
    if found is None:
        found = slots[dtype] = [slot.view(dtype) for slot in slots[torch.uint8]]
    return found


def _volume(views: Views) -> int:
    return sum([view.numel() for view in views])
