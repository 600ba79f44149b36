"""The connections that a library has opened in this process: finding them, and ending the waits on them.

A library does not expose its sockets, but they are in the list of this process's open files: those of a group are the ones
that appeared while it was made. Shutting down a connection ends the waits on it at both ends.

Gloo must not notice a cut while it writes. It reports the end of a connection to all operations whose messages have not
started, but one whose message could not be written, or has partly arrived, keeps waiting (`Pair::signalException` in its
pair.cc). So a cut first shuts down reading only: gloo finds the end of the stream as soon as it has nothing else to read,
and what it writes meanwhile is accepted. The connection stays open for a moment, in which the workers at the other ends get
the news and do the same; then it is shut down completely.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass

CUT_GRACE_SECONDS = 0.5
"""How long the peers of cut connections may take to get the news and cut their ends too."""


@dataclass(frozen=True)
class OpenSocket:
    """A connected stream socket of this process. The addresses distinguish it from a later one with the same descriptor."""

    fd: int
    here: object
    there: object

    @property
    def peer_port(self) -> int:
        return self.there[1] if isinstance(self.there, tuple) else 0


def connections() -> set[OpenSocket]:
    """The connections that are open now."""
    found = set()
    for fd in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as probe:
                if probe.type == socket.SOCK_STREAM:
                    found.add(OpenSocket(fd, probe.getsockname(), probe.getpeername()))
    return found


def cut(which: Collection[OpenSocket]) -> None:
    """End the waits on these connections: here immediately, at the other ends a moment later."""
    with contextlib.ExitStack() as held:
        ends = _duplicates(which)
        for end in ends:
            held.enter_context(end)
        _shut(ends, socket.SHUT_RD)
        time.sleep(CUT_GRACE_SECONDS)
        _shut(ends, socket.SHUT_RDWR)


def shut(which: Collection[OpenSocket]) -> None:
    """Shut down these connections immediately, at both ends."""
    ends = _duplicates(which)
    _shut(ends, socket.SHUT_RDWR)
    for end in ends:
        end.close()


def _duplicates(which: Collection[OpenSocket]) -> list[socket.socket]:
    """Duplicate sockets for these connections, except for those that have been closed meanwhile."""
    found = []
    for connection in which:
        with contextlib.suppress(OSError):
            found.append(socket.socket(fileno=os.dup(connection.fd)))
    return found


def _shut(ends: list[socket.socket], how: int) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(how)
