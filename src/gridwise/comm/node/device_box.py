"""CUDA tensors between two workers that share a device: through device memory opened by both (CUDA IPC).

    sender      device waits for `read` of the slot ──► packs into the slot of its outbox ──► records `written`
    note        through the mailbox on the host: the slot is written; the first note says how to open outbox and events
    receiver    device waits for `written` ──► copies to the destination ──► records `read`, and only then takes the note

So when a slot of the mailbox is free, the last read of the same slot of the outbox has been recorded, and the mailbox's own
ordering suffices. The host waits for the other host, never for the device. Events and memory are opened once and live as
long as the box.

A worker publishes its device in its own line of the shared memory when its first CUDA tensor is posted. If two workers use
different devices, or a device that cannot be shared (expandable segments, another allocator, MIG), tensors are staged
through the host and sent through the mailbox.
"""

from __future__ import annotations

import marshal
import uuid
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...log import logger
from ...torch_internals.tensors import opened_storage, shared_handle
from ..messages.packing import Views, put, volume
from . import futex
from .segment import LINE, Segment
from .slots import Slots

SLOT = 1 << 26
"""Largest slot of an outbox, in bytes: longer messages go in pieces."""
SMALL_SLOT = 1 << 20
"""Smallest slot of an outbox, in bytes."""
UUID = 16
NOT_SHARED = b"\1" + bytes(UUID - 1)
"""What a worker publishes if other workers cannot open its device's memory."""


class Devices:
    """The devices that the workers of the machine have published."""

    def __init__(self, segment: Segment, me: int) -> None:
        self._segment, self._me, self.is_published = segment, me, False
        self._known: dict[int, bool] = {}

    def publish(self, device: torch.device) -> None:
        """Publish the device that this worker uses; called once, for its first CUDA tensor."""
        self.is_published = True
        start, identity = self._place(self._me), bytearray(_identity(device))
        self._segment.bytes[start + 1 : start + 1 + UUID] = torch.frombuffer(identity, dtype=torch.uint8)
        if futex.NEEDS_FENCE:
            futex.fence()
        self._segment.bytes[start] = 1

    def of(self, worker: int) -> bytes | None:
        """The identity of the worker's device; None if it has not published one yet."""
        start = self._place(worker)
        if not self._segment.bytes[start]:
            return None
        if futex.NEEDS_FENCE:
            futex.fence()
        return bytes(self._segment.bytes[start + 1 : start + 1 + UUID].numpy())

    def are_one(self, worker: int) -> bool | None:
        """Whether that worker and this one can share device memory; None while unknown."""
        known = self._known.get(worker)
        if known is None:
            mine, other = self.of(self._me), self.of(worker)
            if mine is None or other is None:
                return None
            known = self._known[worker] = mine == other != NOT_SHARED
        return known

    def _place(self, worker: int) -> int:
        return self._segment.layout.doorbell(worker) + LINE // 2


@cache
def _identity(device: torch.device) -> bytes:
    """The UUID of a device, independent of its index in this process; `NOT_SHARED` if other workers cannot open it."""
    try:
        shared_handle(torch.empty(SMALL_SLOT, dtype=torch.uint8, device=device))
        torch.cuda.Event(interprocess=True).ipc_handle()
    except RuntimeError as error:
        logger.info("%s cannot be shared with other workers, tensors go through the host: %s", device, error)
        return NOT_SHARED
    return uuid.UUID(str(torch.cuda.get_device_properties(device).uuid)).bytes


class Outbox:
    """Two slots on the device for messages to one peer; allocated by the sender."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._written = [torch.cuda.Event(interprocess=True) for _ in (0, 1)]
            self._read = [torch.cuda.Event(interprocess=True) for _ in (0, 1)]
            self._events = [event.ipc_handle() for event in (*self._written, *self._read)]
        self._size = self._generation = self._announced = 0
        self._memory: list[Tensor] = []
        """All memory announced so far: the peer may still read from it. Each block is at least twice the one before."""
        self._slots: Slots

    def pack(self, views: Views, dtype: torch.dtype, note: Tensor, turn: int) -> bool:
        """Fill a slot; return whether the note was written."""
        size = volume(views) * dtype.itemsize
        if size > self._size:
            self._grow(size)
        stream = torch.cuda.current_stream(self._device)
        self._read[turn].wait(stream)
        for view, part in zip(views, self._slots.parts(turn, dtype, views), strict=True):
            part.copy_(view)
        self._written[turn].record(stream)
        return self._announce(note)

    def _grow(self, size: int) -> None:
        self._size = max(SMALL_SLOT, 1 << (size - 1).bit_length())
        self._generation += 1
        self._memory.append(torch.empty(2 * self._size, dtype=torch.uint8, device=self._device))
        self._slots = Slots(self._memory[-1], self._size)

    def _announce(self, note: Tensor) -> bool:
        """Write into the note how to open the memory, once for each block; return whether it was written."""
        if self._announced == self._generation:
            return False
        self._announced = self._generation
        text = marshal.dumps((self._size, shared_handle(self._memory[-1]), self._events))
        note[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return True


class Inbox:
    """A peer's outbox, opened by this worker."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots: Slots
        self._written: list[torch.cuda.Event] = []
        self._read: list[torch.cuda.Event] = []

    def unpack(self, views: Views, dtype: torch.dtype, note: Tensor | None, turn: int, add: bool) -> None:
        if note is not None:
            self._open(*marshal.loads(note.numpy().tobytes()))
        stream = torch.cuda.current_stream(self._device)
        self._written[turn].wait(stream)
        for view, part in zip(views, self._slots.parts(turn, dtype, views), strict=True):
            put(view, part, add)
        self._read[turn].record(stream)

    def _open(self, size: int, handle: tuple[Any, ...], events: list[bytes]) -> None:
        storage = opened_storage(self._device, handle)
        self._slots = Slots(torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage), size)
        if not self._written:
            opened = [torch.cuda.Event.from_ipc_handle(self._device, event) for event in events]
            self._written, self._read = opened[:2], opened[2:]


class DeviceBox:
    """CUDA messages between this worker and one peer, in both directions."""

    def __init__(self, devices: Devices, other: int) -> None:
        self._devices, self._other = devices, other
        self._out: Outbox | None = None
        self._in: Inbox | None = None

    @property
    def is_direct(self) -> bool | None:
        """Whether the two can share device memory; None until both have published their devices."""
        return self._devices.are_one(self._other)

    def pack(self, views: Views, dtype: torch.dtype, note: Tensor, turn: int) -> bool:
        """Copy the views into a slot of the outbox, in stream order; return whether the note was written."""
        self._out = self._out or Outbox(views[0].device)
        return self._out.pack(views, dtype, note, turn)

    def unpack(self, views: Views, dtype: torch.dtype, note: Tensor | None, turn: int, add: bool) -> None:
        """Copy or add the slot's contents to the views, in stream order; `note` is None unless the sender wrote one."""
        self._in = self._in or Inbox(views[0].device)
        self._in.unpack(views, dtype, note, turn, add)
