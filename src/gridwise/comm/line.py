"""A line: whole messages over one TCP connection, opened with a shared secret.

Used by those who look after workers, never by tensors: the pool talks to its workers over lines, and the watch is made
of them. A message is its length (8 bytes, little-endian) and its bytes. The caller's first message is the secret; until
it has arrived, whatever else the other side sends is not looked at. A closed line is news, not an error of its own:
`receive` raises `LineClosed`, and whoever holds the other end is gone.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import struct
import threading
from weakref import WeakSet

HEADER = struct.Struct("<Q")
HANDSHAKE_SECONDS = 10.0
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that lost its power closes nothing: after half a minute the line counts as closed. The kernel answers for a
process that is busy, so a long computation is not mistaken for a death."""


class LineClosed(ConnectionError):
    """The other end has closed the line, or its process is gone."""


class Line:
    """One end of a line. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._socket = connection
        self._sending = threading.Lock()
        _open.add(self)

    def send(self, message: bytes) -> None:
        """Send one message, whole. Raises `LineClosed` when nobody is there."""
        with self._sending:
            try:
                self._socket.sendall(HEADER.pack(len(message)))
                self._socket.sendall(message)
            except OSError as error:
                raise LineClosed(str(error)) from error

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
                raise LineClosed(str(error)) from error
            if not count:
                raise LineClosed("the other end has closed the line")
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
        """Close this end; a thread that is receiving on it gets `LineClosed`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


_open: WeakSet[Line] = WeakSet()


def _forget_all() -> None:
    """In a forked child: it must not hold lines open that its parent's death should close. They live on in the parent."""
    for line in _open:
        line._socket.close()


os.register_at_fork(after_in_child=_forget_all)


class Exchange:
    """Where lines come in: a listening socket and the secret that opens it."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.token = secrets.token_hex(16)
        self._socket = socket.create_server((host, 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]

    def fileno(self) -> int:
        """The descriptor, for `select`: readable when somebody calls."""
        return self._socket.fileno()

    def accept(self) -> Line | None:
        """The caller's line, or None when the caller does not know the secret."""
        line = Line(self._socket.accept()[0])
        with contextlib.suppress(LineClosed, TimeoutError):
            (length,) = HEADER.unpack(line._read(HEADER.size, HANDSHAKE_SECONDS))
            if length == len(self.token):
                said = line._read(length, HANDSHAKE_SECONDS)
                if hmac.compare_digest(said, self.token.encode()):
                    return line
        line.close()
        return None

    def close(self) -> None:
        """Take no more calls."""
        self._socket.close()


def dial(host: str, port: int, token: str, seconds: float = 30.0) -> Line:
    """Open a line to the exchange at `host`:`port`. Raises `OSError` when it does not answer within `seconds`."""
    connection = socket.create_connection((host, port), timeout=seconds)
    connection.settimeout(None)
    line = Line(connection)
    line.send(token.encode())
    return line
