"""Messages arrive whole and in order, and a closed line is noticed."""

from __future__ import annotations

import socket
import threading

import pytest

from gridwise.comm.line import Line, LineClosed


@pytest.fixture
def ends() -> tuple[Line, Line]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        return Line(here), Line(server.accept()[0])


def test_messages_of_any_length_arrive_whole(ends: tuple[Line, Line]) -> None:
    here, there = ends
    messages = [b"", b"x", bytes(5_000_000), b"last"]
    sender = threading.Thread(target=lambda: [here.send(message) for message in messages])
    sender.start()
    assert [bytes(there.receive(5.0)) for _ in messages] == messages
    sender.join()
    here.close()
    there.close()


def test_silence_and_closing_are_told_apart(ends: tuple[Line, Line]) -> None:
    here, there = ends
    with pytest.raises(TimeoutError):
        there.receive(0.05)
    here.close()
    with pytest.raises(LineClosed):
        there.receive(5.0)
    there.close()
