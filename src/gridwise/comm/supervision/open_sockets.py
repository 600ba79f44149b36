"""The connections that a library has opened in this process: which they are, and how those who wait on them are freed.

A library keeps its sockets to itself, but they are in the list of this process's open files: those of a group are what its
making has added. A shutdown of a connection ends the waits on it at both ends.

Gloo must not notice a cut while it writes. It reports the end of a connection to all whose messages have yet to start, but
whoever has a message that could not be written, or of which a part has come, waits on (`Pair::signalException` in its
pair.cc). So a cut ends the reading alone: gloo finds the end of the stream as soon as it has nothing else to read, and
whatever it writes meanwhile is accepted. The connection is held open for a moment, in which the workers at the other ends
hear the news and do the same; then it ends for them too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass

HELD_SECONDS = 0.5
"""How long the other ends of connections that are cut here may take to hear of it, and to cut them there."""


@dataclass(frozen=True)
class OpenSocket:
    """A connected stream socket of this process. The addresses tell it from a later one with the same descriptor."""

    fd: int
    here: object
    there: object

    @property
    def peer_port(self) -> int:
        return self.there[1] if isinstance(self.there, tuple) else 0


def connections() -> set[OpenSocket]:
    """Those that are open at this moment."""
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
    """End the waits on these connections: here at once, a moment later at the other ends."""
    with contextlib.ExitStack() as held:
        ends = _duplicates(which)
        for end in ends:
            held.enter_context(end)
        _shut(ends, socket.SHUT_RD)
        time.sleep(HELD_SECONDS)
        _shut(ends, socket.SHUT_RDWR)


def shut(which: Collection[OpenSocket]) -> None:
    """End these connections, at both ends at once."""
    ends = _duplicates(which)
    _shut(ends, socket.SHUT_RDWR)
    for end in ends:
        end.close()


def _duplicates(which: Collection[OpenSocket]) -> list[socket.socket]:
    """Sockets of our own for these connections; those that have been closed meanwhile are left out."""
    found = []
    for connection in which:
        with contextlib.suppress(OSError):
            found.append(socket.socket(fileno=os.dup(connection.fd)))
    return found


def _shut(ends: list[socket.socket], how: int) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(how)
