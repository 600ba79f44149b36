"""The hub by itself, in a thread: what it tells to whom, without a single worker process."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gridwise.comm.supervision.authenticated_listener import STRANGERS, AuthenticatedListener, connect_authenticated
from gridwise.comm.supervision.hub import Connection, Hub


class Caller:
    """A pretended worker."""

    def __init__(self, port: int, rank: int) -> None:
        self.socket = connect_authenticated(["127.0.0.1"], port, "secret", 10.0)
        self.socket.settimeout(10.0)
        self.file = self.socket.makefile("r")
        self.say("hello", rank=rank, process=100 + rank, host="here", leftover_files=[])
        assert self.hear() == {"say": "welcome"}

    def say(self, say: str, **message: Any) -> None:
        self.socket.sendall(json.dumps({"say": say, **message}).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        return json.loads(self.file.readline())

    def hang_up(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def port() -> Iterator[int]:
    """Where a hub for three workers answers; it has ended when the test has."""
    listener = AuthenticatedListener([socket.create_server(("127.0.0.1", 0))], "secret")
    hub = Hub(listener, size=3, timeout=7.0, prints_verdict=False)
    thread = threading.Thread(target=hub.run, daemon=True)
    thread.start()
    yield listener.port
    thread.join(10.0)
    assert not thread.is_alive()
    hub.selector.close()
    listener.close()


def test_a_closed_connection_is_a_death_and_all_are_told(port: int) -> None:
    callers = [Caller(port, rank) for rank in range(3)]
    callers[0].say("goodbye", counts={"all": 7})
    assert [caller.hear() for caller in callers[1:]] == [{"say": "finished", "counts": {"0": {"all": 7}}}] * 2
    callers[2].hang_up()
    news = callers[1].hear()
    assert (news["kind"], news["workers"]) == ("died", [2])
    assert news["text"].startswith("worker 2 of 3 (process 102 on here) died")
    for caller in callers[:2]:
        caller.hang_up()


def test_only_the_first_bad_news_is_told(port: int) -> None:
    callers = [Caller(port, rank) for rank in range(3)]
    callers[1].say("failed", text="ValueError: no")
    assert callers[0].hear()["text"] == "worker 1 of 3 failed: ValueError: no"
    callers[1].hang_up()
    callers[2].hang_up()
    callers[0].socket.shutdown(socket.SHUT_WR)
    assert callers[0].file.read() == ""
    callers[0].hang_up()


def test_a_late_worker_hears_what_happened_before(port: int) -> None:
    first = Caller(port, 0)
    second = Caller(port, 1)
    second.say("goodbye", counts={})
    assert first.hear() == {"say": "finished", "counts": {"1": {}}}
    late = Caller(port, 2)
    assert late.hear() == {"say": "finished", "counts": {"1": {}}}
    for caller in (first, second, late):
        caller.say("goodbye", counts={})
        caller.hang_up()


def test_the_verdict_on_an_overdue_wait_names_who_is_elsewhere(port: int) -> None:
    callers = [Caller(port, rank) for rank in range(3)]
    wait = {"what": "AllSumReduce", "team": [0, 1, 2], "text": "has waited 8 s for AllSumReduce"}
    callers[2].say("goodbye", counts={})
    for caller in callers[:2]:
        assert caller.hear()["say"] == "finished"
    callers[0].say("overdue", **wait)
    assert callers[0].hear()["say"] == "ask"
    callers[0].say("state", **wait)
    callers[1].say("state", what="HaloExchange", team=[0, 1], text="has waited 6 s for HaloExchange")
    news = callers[0].hear()
    assert (news["kind"], news["workers"]) == ("timeout", [1, 2])
    assert "worker 0 of 3 has waited 8 s for AllSumReduce, longer than `GRIDWISE_TIMEOUT` (=7)" in news["text"]
    assert "worker 1 has waited 6 s for HaloExchange" in news["text"]
    assert "worker 2 has finished" in news["text"]
    for caller in callers:
        caller.hang_up()


@pytest.mark.parametrize("nonsense", [b"[" * 100_000, b"7", b'{"say": "state"', b"\xff\xfe", b'{"say": "deserted"}'])
def test_whatever_one_worker_says_the_others_are_served(port: int, nonsense: bytes) -> None:
    callers = [Caller(port, rank) for rank in range(3)]
    callers[1].socket.sendall(nonsense + b"\n")
    for caller in (callers[0], callers[2]):
        news = caller.hear()
        assert (news["kind"], news["workers"]) == ("died", [1])
    for caller in callers:
        caller.hang_up()


def test_strangers_are_neither_heard_nor_in_the_way(port: int) -> None:
    friend = Caller(port, 0)
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=10.0) for _ in range(2 * STRANGERS)]
    for stranger in strangers:
        with contextlib.suppress(OSError):  # in such a crowd the first ones have been turned away
            stranger.sendall(b'{"say": "failed", "text": "nonsense"}\n' * 10)
    others = [Caller(port, rank) for rank in (1, 2)]
    others[1].hang_up()
    assert friend.hear()["workers"] == [2]
    for each in strangers:
        each.close()
    for caller in (friend, others[0]):
        caller.hang_up()


def test_nothing_follows_a_line_that_was_cut() -> None:
    """Its worker would read the two as one line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        theirs.settimeout(10.0)
        connection = Connection(ours)
        connection.send({"text": "x" * (1 << 22)})  # more than fits while nobody reads
        received = bytearray(theirs.recv(1 << 16))
        connection.send({"say": "ask"})
        while data := theirs.recv(1 << 16):
            received += data
        assert b"\n" not in received
