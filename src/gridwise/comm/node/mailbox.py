"""Messages between two workers of one machine, through two slots in each direction.

    sender      waits until at most one piece is not taken ──► packs into slot k mod 2 ──► sent = k + 1 ──► rings
    receiver    waits until sent > k ──► unpacks straight into the destination ──► taken = k + 1 ──► rings if needed

A message that is longer than a slot goes in pieces; one worker packs a piece while the other unpacks the previous one.
Next to the count is a label with the kind and length of the piece: a worker that expects something else raises an error
instead of taking a piece that was not meant for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from ...errors import MismatchError
from ..messages.packing import Views, chunks, put, volume
from ..supervision.finished_workers import ALL_CALL
from . import futex
from .device_box import SLOT, DeviceBox, Devices
from .segment import Segment
from .slots import Slots

MASK = 0xFFFFFFFF
KINDS = ("a message", "an agreement", "a gathering", "a sum", "a copy")
"""Kinds of messages, on which sender and receiver must agree; the top bits of a piece's label, above its length."""
KIND_BITS, DIRECT_BIT, NOTE_BIT = 29, 1 << 28, 1 << 27
"""Bits of a label: position of the kind; the piece stays on the device; its slot holds a device note."""
LENGTH = NOTE_BIT - 1
ASLEEP = 3
"""Index of the word, in a worker's line of the board, that says whether it sleeps."""


class Delivery:
    """Pending messages, waited for together; `left` of them are not complete."""

    __slots__ = ("left", "wait_for")

    def __init__(self, wait_for: Callable[[Delivery], None], left: int) -> None:
        self.wait_for, self.left = wait_for, left

    def wait(self) -> None:
        if self.left:
            self.wait_for(self)


class Transfer:
    """One incoming or outgoing message, and what remains of it, in pieces that fit into a slot."""

    __slots__ = ("add", "delivery", "dtype", "is_direct", "kind", "pieces", "views")

    def __init__(self, views: Views, dtype: torch.dtype, add: bool, kind: int, delivery: Delivery) -> None:
        self.views, self.dtype, self.add, self.kind, self.delivery = views, dtype, add, kind, delivery
        self.pieces: deque[tuple[Views, int]] | None = None
        """The remaining pieces, each with its number of elements; None until `begin`."""
        self.is_direct = False
        """Whether the data stay on the device, and only a note goes through the mailbox."""

    def begin(self, box: Mailbox) -> bool:
        """Cut the message into pieces; False while the peer's device is still unknown."""
        views, limit = self.views, box.chunk
        if views and views[0].is_cuda:
            is_direct = box.device.is_direct
            if is_direct is None:
                return False
            self.is_direct, limit = is_direct, SLOT if is_direct else limit
        limit //= self.dtype.itemsize
        total = volume(views)
        fits = total <= limit
        self.pieces = deque([(views, total)] if fits else [(part, volume(part)) for part in chunks(views, limit)])
        return True

    def label(self, count: int) -> int:
        """The label of a piece with `count` elements."""
        return self.kind << KIND_BITS | (DIRECT_BIT if self.is_direct else 0) | count * self.dtype.itemsize


class Mailbox:
    """Messages between this worker and one peer, in both directions."""

    def __init__(self, segment: Segment, me: int, other: int, rank: int, devices: Devices) -> None:
        layout = segment.layout
        self._rank = rank
        self.chunk, self.device = layout.chunk, DeviceBox(devices, other)
        self._words = segment.words
        self._sent_at, self._taken_at = layout.sent(me, other) // 4, layout.taken(other, me) // 4
        self._their_taken_at, self._their_sent_at = layout.taken(me, other) // 4, layout.sent(other, me) // 4
        self._sent, self._taken = self._words[self._sent_at], self._words[self._taken_at]
        self._slots_out = Slots(segment.slots(me, other), layout.chunk)
        self._slots_in = Slots(segment.slots(other, me), layout.chunk)
        self.outgoing: deque[Transfer] = deque()
        self.incoming: deque[Transfer] = deque()
        self._asleep_at = layout.written(other) // 4 + ASLEEP
        bell = layout.doorbell(other)
        self._bell_at, self._bell_address = bell // 4, segment.address + bell
        self._ring = (me & 0x3FF) << 22
        """The last value written to the peer's doorbell. No other worker writes the same values, so each ring changes it."""

    def advance(self) -> bool:
        """Move whatever can be moved now; return whether anything was."""
        words, moved = self._words, False
        outgoing, incoming = self.outgoing, self.incoming
        while outgoing and (self._sent - words[self._their_taken_at]) & MASK < 2:
            transfer = outgoing[0]
            if transfer.pieces is None and not transfer.begin(self):
                break
            self._pack(transfer)
            if not transfer.pieces:
                outgoing.popleft()
                transfer.delivery.left -= 1
            moved = True
        while incoming and words[self._their_sent_at] != self._taken:
            transfer = incoming[0]
            if transfer.pieces is None and not transfer.begin(self):
                break
            self._unpack(transfer)
            if not transfer.pieces:
                incoming.popleft()
                transfer.delivery.left -= 1
            moved = True
        return moved

    def _pack(self, transfer: Transfer) -> None:
        assert transfer.pieces
        (views, count), turn = transfer.pieces.popleft(), self._sent & 1
        label = transfer.label(count)
        if transfer.is_direct:
            if self.device.pack(views, transfer.dtype, self._slots_out.bytes(turn), turn):
                label |= NOTE_BIT
        else:
            for view, part in zip(views, self._slots_out.parts(turn, transfer.dtype, views), strict=True):
                part.copy_(view)
        self._words[self._sent_at + 1 + turn] = label
        if futex.NEEDS_FENCE:
            futex.fence()
        self._sent = (self._sent + 1) & MASK
        self._words[self._sent_at] = self._sent
        self.notify()

    def _unpack(self, transfer: Transfer) -> None:
        assert transfer.pieces
        if futex.NEEDS_FENCE:
            futex.fence()
        (views, count), turn, before = transfer.pieces.popleft(), self._taken & 1, self._taken
        label = self._words[self._their_sent_at + 1 + turn]
        if label & ~NOTE_BIT != transfer.label(count):
            raise mismatch(self._rank, f"sent {spelt(label)}", f"waits for {spelt(transfer.label(count))}")
        if transfer.is_direct:
            note = self._slots_in.bytes(turn) if label & NOTE_BIT else None
            self.device.unpack(views, transfer.dtype, note, turn, transfer.add)
        else:
            for view, part in zip(views, self._slots_in.parts(turn, transfer.dtype, views), strict=True):
                put(view, part if view.device == part.device else part.to(view.device), transfer.add)
        if futex.NEEDS_FENCE:
            futex.fence()
        self._taken = (before + 1) & MASK
        self._words[self._taken_at] = self._taken
        futex.fence()
        # checked after freeing the slot: a peer that fills the other slot meanwhile either sees it free or is woken
        if (self._words[self._their_sent_at] - before) & MASK >= 2:
            self.notify()  # the peer may be waiting for this slot

    def unexpected(self) -> str:
        """A description of what the peer has sent and nobody here waits for; empty if there is nothing."""
        if self.incoming or self._words[self._their_sent_at] == self._taken:
            return ""
        return spelt(self._words[self._their_sent_at + 1 + (self._taken & 1)])

    def notify(self) -> None:
        """Make the peer check again for messages and free slots; wake it if it sleeps."""
        self.ring()
        futex.fence()
        self.wake_if_asleep()

    def ring(self) -> None:
        """Change the peer's doorbell, so that it does not fall asleep before checking again."""
        self._ring = self._ring & ~0x3FFFFF | (self._ring + 1) & 0x3FFFFF
        self._words[self._bell_at] = self._ring

    def wake_if_asleep(self) -> None:
        """Wake the peer if it is marked asleep; after `ring` and a fence, or the mark may be read too early."""
        if self._words[self._asleep_at]:
            futex.wake(self._bell_address)


def spelt(label: int) -> str:
    kind = label >> KIND_BITS
    return f"{KINDS[kind] if kind < len(KINDS) else 'something unknown'} of {label & LENGTH} bytes"


def mismatch(rank: int, it_did: str, this_does: str) -> MismatchError:
    """The error for a worker whose call is not the one that this worker waits for."""
    return MismatchError(f"worker {rank} {it_did}, where this worker {this_does}.", fix=ALL_CALL)
