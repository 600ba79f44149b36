"""Only who knows the secret gets in, whoever else calls meanwhile, and the caller knows whom it has reached."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gridwise.comm.supervision import authenticated_listener
from gridwise.comm.supervision.authenticated_listener import (
    NONCE,
    PROOF,
    STRANGERS,
    AuthenticatedListener,
    connect_authenticated,
)

HERE = "127.0.0.1"


class Server:
    """A listener that a thread serves."""

    def __init__(self) -> None:
        self.listener = AuthenticatedListener([socket.create_server((HERE, 0), backlog=1024)], "secret")
        self.port = self.listener.port
        self.admitted: list[socket.socket] = []
        self.ended = False
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        while not self.ended:
            self.admitted += self.listener.admitted()
            time.sleep(0.001)

    def close(self) -> None:
        self.ended = True
        self.thread.join()
        self.listener.close()
        for each in self.admitted:
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def strangers(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection((HERE, port), timeout=10.0) for _ in range(count)]


def test_both_know_each_other_and_can_talk(server: Server) -> None:
    with connect_authenticated([HERE], server.port, "secret", 10.0) as caller:
        caller.sendall(b"hello")
        (inside,) = server.admitted
        inside.settimeout(10.0)
        assert inside.recv(10) == b"hello"
        inside.sendall(b"welcome")
        assert caller.recv(10) == b"welcome"


def test_a_wrong_secret_is_turned_away(server: Server) -> None:
    with pytest.raises(OSError, match=r"turned away|reset"):
        connect_authenticated([HERE], server.port, "guess", 0.3)
    assert server.admitted == []


def test_what_was_overheard_does_not_open_it_again(server: Server) -> None:
    with socket.create_connection((HERE, server.port), timeout=10.0) as first:
        number = bytes(NONCE)
        said = number + authenticated_listener._proof(b"secret", b"caller", first.recv(NONCE), number)
        first.sendall(said)
        assert len(first.recv(PROOF)) == PROOF
    with socket.create_connection((HERE, server.port), timeout=10.0) as second:
        second.recv(NONCE)
        second.sendall(said)
        assert second.recv(PROOF) == b""
    assert len(server.admitted) == 1


def test_who_has_taken_over_the_port_learns_nothing_and_is_not_believed() -> None:
    heard = []

    def pretend() -> None:
        caller, _ = server.accept()
        with caller:
            caller.sendall(bytes(NONCE))
            heard.append(caller.recv(NONCE + PROOF))
            caller.sendall(bytes(PROOF))
            caller.recv(1)

    with socket.create_server((HERE, 0)) as server:
        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(OSError, match="does not belong to this job"):
            connect_authenticated([HERE], server.getsockname()[1], "secret", 0.1)
        thread.join()
    assert b"secret" not in heard[0]


def test_idle_and_slow_strangers_do_not_hold_anybody_up(server: Server) -> None:
    callers = strangers(server.port, 20)
    for each in callers[:10]:
        each.sendall(b"x" * (NONCE + PROOF - 1))
    began = time.monotonic()
    connect_authenticated([HERE], server.port, "secret", 10.0).close()
    assert time.monotonic() - began < authenticated_listener.PROOF_SECONDS
    for each in callers:
        each.close()


def test_strangers_have_little_time_and_are_few(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = strangers(server.port, 3 * STRANGERS)
    connect_authenticated([HERE], server.port, "secret", 10.0).close()
    assert len(server.listener._strangers) <= STRANGERS
    monkeypatch.setattr(authenticated_listener, "PROOF_SECONDS", 0.2)
    late = strangers(server.port, STRANGERS)
    for each in late:
        each.recv(NONCE)
        with contextlib.suppress(ConnectionResetError):
            assert each.recv(1) == b""
    for each in callers + late:
        each.close()


def test_a_flood_of_nonsense_does_no_harm(server: Server) -> None:
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), socket.create_connection((HERE, server.port), timeout=10.0) as one:
                one.sendall(b"\xff" * 100_000)

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        connect_authenticated([HERE], server.port, "secret", 20.0).close()
    ended.set()
    for thread in threads:
        thread.join()
    assert len(server.admitted) == 20
