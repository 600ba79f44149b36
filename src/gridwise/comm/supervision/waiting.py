"""What a worker waits for, with whom and since when: recorded before every call of a library, and read by the watch.

The same context translates the library's failures, and refuses calls that would mix up messages: from one thread while
another waits (threads may take turns, as autograd's do in a backward on a device), and from a forked child. A child of a
worker, such as one of a DataLoader, has copies of its transports and shares the worker's connections: what it sends would be
taken for the worker's, and what it receives would be lost to the worker. It may still ask for ranks and local slices.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from ...errors import FaultError, GridwiseError, TransportError
from ..messages.requests import Request
from .finished_workers import Wait, message_name, team_name

if TYPE_CHECKING:
    from .watch import Watch


_living: WeakSet[Supervised] = WeakSet()


class Supervised:
    """A transport that records what its worker waits for, counts what it took part in, and refuses invalid calls."""

    name: str
    survives_forks = False
    """Whether a forked child of the worker may use the transport too."""
    is_closed = False
    refuses = False
    """Whether calls are refused: the transport is closed, or is a copy in a child, which would steal messages."""

    def __init__(self, rank: int, size: int) -> None:
        _living.add(self)
        self.rank = rank
        self.size = size
        self.world = ""
        """A name that distinguishes this world from others of a pool, the same on all of its workers."""
        self.places: Sequence[int] = range(size)
        """The ranks of its workers in the pool."""
        self.watch: Watch | None = None
        self.waiting: Waiting | None = None
        self.collectives: dict[tuple[int, ...], int] = {}
        """The number of collectives of each team that this worker has joined, to find who waits in vain (see
        `finished_workers`)."""
        self.sent: dict[int, int] = defaultdict(int)
        self.received: dict[int, int] = defaultdict(int)
        """The numbers of messages to (`sent`) and from each peer that this worker has started, for the same purpose."""

    def refuse(self, what: str) -> NoReturn:
        """Raise the error for a call of `what` after closing, or in a forked child."""
        if self.is_closed:
            raise TransportError(
                f"{what} was called on worker {self.rank} of {self.size} in a world that was closed.",
                fix="call deactivate() of a world when nothing of it is used any more: layers and partitions made "
                "from it end with it.",
            )
        raise TransportError(
            f"{what} was called in a process that worker {self.rank} of {self.size} has forked: the connections to the "
            "other workers are the worker's own.",
            fix="let the worker itself talk to the others; its children (of a DataLoader, say) may ask for ranks and "
            "local slices.",
        )

    def waiting_for(self, what: str, team: tuple[int, ...]) -> Waiting:
        """A context that records which collective is waited for, and raises its failures as errors that name a worker."""
        self.collectives[team] = number = self.collectives.get(team, 0) + 1
        return Waiting(self, what, team, number)

    def waiting_for_messages(
        self, what: str, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]
    ) -> Waiting:
        """The same for messages; a worker that only sends waits for the receivers."""
        return Waiting(self, what, [peer for peer, _ in receives or sends], is_sending=not receives)

    def count(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> None:
        """Count these messages as started."""
        for peer, _ in sends:
            self.sent[peer] += 1
        for peer, _ in receives:
            self.received[peer] += 1

    def explained(self, error: Exception, what: str) -> Exception:
        """The error to raise for an exception of the library: one that names a worker, or the exception itself."""
        if not self._is_fault(error):
            return error
        named = self.watch.explain(error) if self.watch else None
        return named or FaultError(f"{what} failed on worker {self.rank} of {self.size} over {self.name}: {error}")

    def _is_fault(self, error: Exception) -> bool:
        """Whether an exception of the library means that the network or a peer failed."""
        return isinstance(error, RuntimeError)

    def counted(self) -> dict[str, int]:
        """The numbers of this worker's collectives and messages so far, under short names that all workers share."""
        me, world = self.rank, self.world
        return {
            **{team_name(world, team): count for team, count in list(self.collectives.items())},
            **{message_name(world, me, peer): count for peer, count in list(self.sent.items())},
            **{message_name(world, peer, me): count for peer, count in list(self.received.items())},
        }


def _mark_forked() -> None:
    for each in _living:
        each.refuses = each.refuses or not each.survives_forks


os.register_at_fork(after_in_child=_mark_forked)


@dataclass(slots=True)
class Waiting:
    """What this worker is waiting for, with whom and since when; read by the watch when time runs out.

    Also the context in which a library is called: it raises the library's failures as errors that name a worker.
    """

    transport: Supervised
    what: str
    team: Sequence[int]
    number: int = 0
    """The number of this collective among those of the team, from 1; 0 for messages."""
    is_sending: bool = False
    """Whether this worker only sends to the team, and receives nothing."""
    since: float = 0.0
    outer: Waiting | None = None
    thread: int = 0

    def __enter__(self) -> None:
        transport, thread = self.transport, get_ident()
        if transport.refuses:
            transport.refuse(self.what)
        outer = transport.waiting
        if outer is not None and outer.thread != thread and transport.size > 1:
            self._refuse_thread(thread, outer)
        self.thread, self.since = thread, time.monotonic()
        self.outer, transport.waiting = outer, self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, GridwiseError):
                named = self.transport.explained(error, self.what)
                if named is not error:
                    raise named from error
        finally:
            self.transport.waiting = self.outer  # last: the explanation needs to know what was waited for

    def described(self) -> Wait:
        """The same in the form sent to others."""
        places = self.transport.places
        return Wait(self.what, {places[peer]: self._need(peer) for peer in self.team}, time.monotonic() - self.since)

    def _need(self, peer: int) -> tuple[str, int]:
        transport, me = self.transport, self.transport.rank
        if self.number:
            return team_name(transport.world, self.team), self.number
        if self.is_sending:
            return message_name(transport.world, me, peer), transport.sent[peer]
        return message_name(transport.world, peer, me), transport.received[peer]

    def _refuse_thread(self, thread: int, other: Waiting) -> NoReturn:
        names = {each.ident: each.name for each in threading.enumerate()}
        raise TransportError(
            f"{self.what} was called in thread {names.get(thread, '?')!r} of worker {self.transport.rank} of "
            f"{self.transport.size} while thread {names.get(other.thread, '?')!r} waits for {other.what}: the messages "
            "of the two would be mixed up.",
            fix="let one thread of each worker call layers, or let threads take turns, in the same order on all workers.",
        )


@dataclass(slots=True)
class Guarded:
    """Pending messages whose wait is visible to the watch."""

    pending: Request
    waiting: Waiting

    def wait(self) -> None:
        with self.waiting:
            self.pending.wait()
