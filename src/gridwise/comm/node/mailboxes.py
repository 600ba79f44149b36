"""Messages between a worker and all others of its machine: a mailbox for each peer (see `mailbox`), and a common wait.

Messages between two workers keep their order, whichever is waited for first: each mailbox has a queue for each direction,
and every wait advances all queues. A worker that has nothing to move sleeps until its doorbell is rung; if every worker has
its own core, it first polls for a moment, since waking up takes longer than most messages.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...torch_internals.compiler import is_compiling_calls
from ..messages.packing import Views
from . import futex
from .device_box import Devices
from .mailbox import ASLEEP, Delivery, Mailbox, Transfer, mismatch
from .segment import Segment

Moves = Sequence[tuple[int, Views]]

SLICE = 0.05
"""Longest sleep of a worker, in seconds, before it checks whether its connections were cut."""
LIFE_SECONDS = 1.0
"""How long a worker waits before it checks whether its peers are alive, and how often it checks again."""
SPIN_SECONDS = 3e-3
"""How long a worker with its own core polls before it sleeps: waking up takes longer than most waits. It is less than other
threads of the process wait for the interpreter anyway (`sys.getswitchinterval`)."""

CALL_SECONDS = 1e-4
"""Shortest interval at which a waiting worker calls `meanwhile`."""


class NodeError(RuntimeError):
    """Communication with a worker of this machine is no longer possible."""


def _outside_of_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that torch.compile must not trace; the compiler is not imported for it."""
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        compiler = sys.modules.get("torch._dynamo")
        if compiler is None or not (torch.compiler.is_compiling() or is_compiling_calls()):
            return method(*args, **kwargs)
        if not disabled:
            disabled.append(compiler.disable(method))
        return disabled[0](*args, **kwargs)

    return call


class Mailboxes:
    """Messages between this worker and all others of its machine, by their ranks."""

    def __init__(
        self, segment: Segment, places: dict[int, int], me: int, processes: dict[int, int], spins: bool
    ) -> None:
        mine = places[me]
        self._devices = Devices(segment, mine)
        others = {rank: place for rank, place in places.items() if rank != me}
        self._boxes = {rank: Mailbox(segment, mine, place, rank, self._devices) for rank, place in others.items()}
        self._words = segment.words
        bell = segment.layout.doorbell(mine)
        self._bell_at, self._bell_address = bell // 4, segment.address + bell
        self._asleep_at = segment.layout.written(mine) // 4 + ASLEEP
        self._starts = {rank: started(process) for rank, process in processes.items() if rank != me}
        self._processes = processes
        self._spin = SPIN_SECONDS if spins else 0.0
        self._busy: set[Mailbox] = set()
        self.is_cut = False
        self._failed = ""
        """The error that interrupted an earlier call, after which messages may be half sent or half taken."""
        self.meanwhile: Callable[[], object] | None = None
        """Called from time to time while waiting, to let the transport's own messages progress."""

    @_outside_of_graphs
    def post(self, sends: Moves, receives: Moves, dtype: torch.dtype, add: bool = False, kind: int = 0) -> Delivery:
        """Start sending and receiving. The receiving views may have a wider dtype than `dtype`, to accumulate in it."""
        self.check_usable()
        delivery = Delivery(self.wait_for, len(sends) + len(receives))
        for _, views in (*sends, *receives):
            if views and views[0].is_cuda:
                self._publish_device(views[0].device)
        try:
            for rank, views in receives:
                box = self._boxes[rank]
                box.incoming.append(Transfer(views, dtype, add, kind, delivery))
                self._busy.add(box)
            for rank, views in sends:
                box = self._boxes[rank]
                box.outgoing.append(Transfer(views, dtype, add, kind, delivery))
                self._busy.add(box)
                box.advance()
        except BaseException as error:
            self._failed = repr(error)
            raise
        return delivery

    def check_usable(self) -> None:
        """Raise if the connections were cut, or if messages would be mixed up with those of a failed call."""
        if self.is_cut:
            raise NodeError("the connections of this worker were cut")
        if self._failed:
            raise NodeError(f"an earlier call did not come to its end on this worker ({self._failed})")

    def ring_sleepers(self) -> None:
        """Make all peers check again. One that is about to sleep either sees its doorbell changed or is marked asleep."""
        for box in self._boxes.values():
            box.ring()
        futex.fence()
        for box in self._boxes.values():
            box.wake_if_asleep()

    def wait_for(self, delivery: Delivery) -> None:
        """Return when all messages of the delivery have been sent or received."""
        self._wait(lambda: not delivery.left, list)

    def wait_until(self, missing: Callable[[], list[int]]) -> None:
        """Return when `missing` lists no worker any more."""
        self._wait(lambda: not missing(), missing)

    @_outside_of_graphs
    def _wait(self, is_done: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        try:
            self._move_until(is_done, missing)
        except BaseException as error:
            self._failed = repr(error)
            raise
        self._busy = {box for box in self._busy if box.outgoing or box.incoming}

    def _move_until(self, is_done: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        words, bell, asleep = self._words, self._bell_at, self._asleep_at
        since = called = look_at = 0.0
        while True:
            seen, was_cut = words[bell], self.is_cut
            moved = False
            for box in self._busy:
                moved |= box.advance()
            if is_done():
                return
            if moved:
                since = 0.0
                continue
            if was_cut:  # before the last look: what had arrived by then is delivered
                raise NodeError("the connections of this worker were cut")
            now = time.perf_counter()
            since = since or now
            if self.meanwhile is not None and now - (called or since) > CALL_SECONDS:
                called = now
                self.meanwhile()
            if now - since < self._spin:
                continue
            look_at = look_at or now + LIFE_SECONDS
            words[asleep] = 1
            if not is_done():
                futex.wait(self._bell_address, seen, SLICE)
            words[asleep] = 0
            if now > look_at:
                look_at = now + LIFE_SECONDS
                self._look_for_mismatches(missing)
                self._look_for_the_dead(missing)

    def _publish_device(self, device: torch.device) -> None:
        if not self._devices.is_published:
            self._devices.publish(device)
            for box in self._boxes.values():
                box.notify()  # the peer may have a message that waits to know this device

    def _look_for_mismatches(self, missing: Callable[[], list[int]]) -> None:
        """Raise if a missing worker has sent a message instead of joining the collective."""
        for rank in missing():
            came = self._boxes[rank].unexpected()
            if futex.NEEDS_FENCE:
                futex.fence()
            if came and rank in missing():  # had it joined first, its row would be visible before that message
                raise mismatch(rank, f"sent {came}", "waits for it in an agreement or a sum of all")

    def _look_for_the_dead(self, missing: Callable[[], list[int]]) -> None:
        awaited = missing()
        for box_rank, box in self._boxes.items():
            if (box.outgoing or box.incoming or box_rank in awaited) and not self._lives(box_rank):
                box.advance()  # it may have sent a last message before it ended
                if box.outgoing or box.incoming or box_rank in missing():
                    raise NodeError(f"the process of worker {box_rank} is gone")

    def _lives(self, rank: int) -> bool:
        start = started(self._processes[rank])
        return start is not None and start == self._starts[rank]


def started(process: int) -> str | None:
    """The start time of a process of this machine, in kernel ticks; None if it has ended."""
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
