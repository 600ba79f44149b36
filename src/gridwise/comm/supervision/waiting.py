"""What a worker waits for, with whom, since when: said before every call of a library, and read by the watch.

The same context translates the library's failures, and refuses calls that would mix up messages: from a forked child (see
`forks`), and from one thread while another waits. Threads may take turns, as autograd's do in a backward on a device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import NoReturn, Protocol

from ...errors import GridwiseError, TransportError, describe
from ..messages.requests import Request
from .finished_workers import Counts, Wait, message_name, team_name


class Watching(Protocol):
    """What a transport wants to know from the watch over the other workers (see `watch`)."""

    def explain(self, error: Exception) -> GridwiseError | None:
        """The error that names the worker that died or failed, if that is why `error` was raised."""


class Waits(Counts, Protocol):
    """A transport, as far as a wait goes."""

    size: int
    refuses: bool
    waiting: Waiting | None

    def refuse(self, what: str) -> NoReturn: ...

    def explained(self, error: Exception, what: str) -> Exception:
        """An exception of the library, or the error that says what it means."""


@dataclass(slots=True)
class Waiting:
    """What this worker is waiting for, with whom, since when: read by the watch when time runs out.

    Also the context in which a library is called: its failures come out as errors that name a worker.
    """

    transport: Waits
    what: str
    team: Sequence[int]
    number: int = 0
    """Of this collective among those of the team, from 1 on; 0 for messages."""
    is_sending: bool = False
    """Whether the messages go to each of the team, and none comes."""
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
            self.transport.waiting = self.outer  # last: the explanation says what was waited for

    def described(self) -> Wait:
        """What others are told of it."""
        return Wait(self.what, tuple(self.team), self._needs(), time.monotonic() - self.since)

    def _needs(self) -> dict[int, tuple[str, int]]:
        transport, me = self.transport, self.transport.rank
        if self.number:
            return dict.fromkeys(self.team, (team_name(self.team), self.number))
        if self.is_sending:
            return {peer: (message_name(me, peer), transport.sent[peer]) for peer in self.team}
        return {peer: (message_name(peer, me), transport.received[peer]) for peer in self.team}

    def _refuse_thread(self, thread: int, other: Waiting) -> NoReturn:
        names = {each.ident: each.name for each in threading.enumerate()}
        raise TransportError(
            describe(
                f"{self.what} was called in thread {names.get(thread, '?')!r} of worker {self.transport.rank} of "
                f"{self.transport.size} while thread {names.get(other.thread, '?')!r} waits for {other.what}: the messages "
                "of the two would be mixed up.",
                fix="let one thread of each worker call layers, or let threads take turns, in the same order on all workers.",
            )
        )


@dataclass(slots=True)
class Guarded:
    """Messages whose wait is known to the watch."""

    pending: Request
    waiting: Waiting

    def wait(self) -> None:
        with self.waiting:
            self.pending.wait()
