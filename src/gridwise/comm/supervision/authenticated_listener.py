"""A listening port that admits only processes that know the job's secret.

    caller                                                        listener
                                                            <-    n, 32 random bytes
    m, 32 random bytes; HMAC(secret, "caller", n, m)        ->
                                                            <-    HMAC(secret, "listener", n, m)

Neither side sends the secret, and each proves that it knows it: a process that has taken over the port of a listener that is
gone learns nothing and is not trusted. Before the proof, the listener reads these 64 bytes from a caller and nothing else. It
serves all callers concurrently, gives each `PROOF_SECONDS`, and keeps at most `STRANGERS` at a time: in a flood the oldest
are dropped, and `connect_authenticated` tries again.

Imports only the standard library, because `hub` runs without Gridwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

NONCE = 32
PROOF = hashlib.sha256().digest_size
PROOF_SECONDS = 5.0
STRANGERS = 64
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that loses power closes no connections: after half a minute they are considered closed. The kernel answers on
behalf of a busy process, so a long computation is not mistaken for a death."""


def new_secret() -> str:
    """A new random secret, to be shared by the processes of one job only."""
    return secrets.token_hex(32)


@dataclass
class _Stranger:
    """A caller that has not proved yet that it belongs to the job."""

    challenge: bytes
    deadline: float
    said: bytearray = field(default_factory=bytearray)


class AuthenticatedListener:
    """Listening sockets, and the callers that are not admitted yet."""

    def __init__(self, listening: Sequence[socket.socket], secret: str) -> None:
        self._secret = secret.encode()
        self._listening = list(listening)
        self._strangers: dict[socket.socket, _Stranger] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        for each in self._listening:
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        return int(self._listening[0].getsockname()[1])

    def fileno(self) -> int:
        """A descriptor, for `select`, that is readable when a caller connects or sends something."""
        return self._selector.fileno()

    def patience(self) -> float | None:
        """Seconds after which `admitted` should be called even if nothing arrives; None: no need."""
        if not self._strangers:
            return None
        return max(0.0, next(iter(self._strangers.values())).deadline - time.monotonic())

    def admitted(self) -> list[socket.socket]:
        """The callers that have newly proved that they know the secret, and were sent the listener's proof. Never blocks."""
        found = []
        for key, _ in self._selector.select(0):
            assert isinstance(key.fileobj, socket.socket)
            if key.fileobj in self._listening:
                self._accept(key.fileobj)
            elif key.fileobj in self._strangers and self._hear(key.fileobj):
                found.append(key.fileobj)
        now = time.monotonic()
        for caller in [caller for caller, stranger in self._strangers.items() if stranger.deadline < now]:
            self._turn_away(caller)
        return found

    def close(self) -> None:
        """Stop listening, and drop the callers that are not admitted yet."""
        for caller in list(self._strangers):
            self._turn_away(caller)
        for each in self._listening:
            each.close()
        self._selector.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(STRANGERS):
            try:
                caller, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of file descriptors
                if not self._strangers:
                    time.sleep(0.05)
                    return
                self._turn_away(next(iter(self._strangers)))
                continue
            if len(self._strangers) == STRANGERS:
                self._turn_away(next(iter(self._strangers)))
            stranger = _Stranger(secrets.token_bytes(NONCE), time.monotonic() + PROOF_SECONDS)
            try:
                caller.setblocking(False)
                caller.send(stranger.challenge)
                self._selector.register(caller, selectors.EVENT_READ)
                self._strangers[caller] = stranger
            except OSError:
                caller.close()

    def _hear(self, caller: socket.socket) -> bool:
        """Read from the caller; True once it has sent the proof. A caller that sends anything else is dropped."""
        stranger = self._strangers[caller]
        try:
            said = caller.recv(NONCE + PROOF - len(stranger.said))
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        stranger.said += said
        if said and len(stranger.said) < NONCE + PROOF:
            return False
        number, proof = bytes(stranger.said[:NONCE]), bytes(stranger.said[NONCE:])
        if said and hmac.compare_digest(proof, _proof(self._secret, b"caller", stranger.challenge, number)):
            with contextlib.suppress(OSError):
                caller.send(_proof(self._secret, b"listener", stranger.challenge, number))
                self._selector.unregister(caller)
                del self._strangers[caller]
                caller.setblocking(True)
                keep_alive(caller)
                return True
        self._turn_away(caller)
        return False

    def _turn_away(self, caller: socket.socket) -> None:
        self._strangers.pop(caller, None)
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(caller)
        caller.close()


def connect_authenticated(hosts: Sequence[str], port: int, secret: str, seconds: float) -> socket.socket:
    """A connection to the listener at one of `hosts`, tried in turn. Raises `OSError` if there is none after `seconds`."""
    deadline = time.monotonic() + seconds
    problem: OSError = TimeoutError(f"nobody listens at {', '.join(hosts)}, port {port}")
    while time.monotonic() < deadline:
        for host in hosts:
            try:
                limit = min(PROOF_SECONDS, max(0.1, deadline - time.monotonic()))
                return _through(socket.create_connection((host, port), timeout=limit), secret.encode())
            except OSError as error:
                problem = error
        time.sleep(0.1)
    raise problem


def _through(connection: socket.socket, secret: bytes) -> socket.socket:
    try:
        number, deadline = secrets.token_bytes(NONCE), time.monotonic() + PROOF_SECONDS
        challenge = _exactly(connection, NONCE, deadline)
        connection.sendall(number + _proof(secret, b"caller", challenge, number))
        if not hmac.compare_digest(
            _exactly(connection, PROOF, deadline), _proof(secret, b"listener", challenge, number)
        ):
            raise ConnectionError("the process that answered does not belong to this job")
        connection.settimeout(None)
        keep_alive(connection)
        return connection
    except BaseException:
        connection.close()
        raise


def _exactly(connection: socket.socket, length: int, deadline: float) -> bytes:
    data = b""
    while len(data) < length:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("turned away")
        data += part
    return data


def _proof(secret: bytes, who: bytes, challenge: bytes, number: bytes) -> bytes:
    return hmac.digest(secret, who + challenge + number, "sha256")


def keep_alive(connection: socket.socket) -> None:
    """Enable keep-alive, which detects within a minute that the machine at the other end is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
