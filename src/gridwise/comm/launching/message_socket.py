"""Whole messages over one TCP connection, between two that have proved to each other who they are (see
`authenticated_listener`).

The pool talks to its workers over lines; tensors never go there. A message is its length (8 bytes, little-endian) and
its bytes. A closed line is news, not an error of its own: `receive` raises `SocketClosed`, and whoever holds the other
end is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from weakref import WeakSet

HEADER = struct.Struct("<Q")


class SocketClosed(ConnectionError):
    """The other end has closed the line, or its process is gone."""


class MessageSocket:
    """One end of a line. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        _open.add(self)

    def send(self, message: bytes) -> None:
        """Send one message, whole. Raises `SocketClosed` when nobody is there."""
        with self._sending:
            try:
                self._socket.sendall(HEADER.pack(len(message)))
                self._socket.sendall(message)
            except OSError as error:
                raise SocketClosed(str(error)) from error

    def receive(self, seconds: float | None = None) -> bytearray:
        """The next message. Raises `TimeoutError` when nothing arrives for `seconds`."""
        (length,) = HEADER.unpack(self._read(HEADER.size, seconds))
        return self._read(length, None)

    def _read(self, length: int, seconds: float | None) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            try:
                # not settimeout: that would also hurry the threads that send
                if seconds is not None and not self._arrives_within(seconds):
                    raise TimeoutError(f"nothing arrived for {seconds} s")
                count = self._socket.recv_into(view)
            except TimeoutError:
                raise
            except (OSError, ValueError) as error:  # ValueError: closed by another thread
                raise SocketClosed(str(error)) from error
            if not count:
                raise SocketClosed("the other end has closed the line")
            view = view[count:]
        return data

    def _arrives_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def fileno(self) -> int:
        """The descriptor, for `select`; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end; a thread that is receiving on it gets `SocketClosed`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


_open: WeakSet[MessageSocket] = WeakSet()


def _forget_all() -> None:
    """In a forked child: it must not hold lines open that its parent's death should close. They live on in the parent."""
    for line in _open:
        line._socket.close()


os.register_at_fork(after_in_child=_forget_all)
