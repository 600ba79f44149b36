"""Messages arrive whole and in order, and a closed line is noticed."""

from __future__ import annotations

import socket
import threading

import pytest

from gridwise.comm.launching.message_socket import MessageSocket, SocketClosed


@pytest.fixture
def ends() -> tuple[MessageSocket, MessageSocket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        return MessageSocket(here), MessageSocket(server.accept()[0])


def test_messages_of_any_length_arrive_whole(ends: tuple[MessageSocket, MessageSocket]) -> None:
    here, there = ends
    messages = [b"", b"x", bytes(5_000_000), b"last"]
    sender = threading.Thread(target=lambda: [here.send(message) for message in messages])
    sender.start()
    assert [bytes(there.receive(5.0)) for _ in messages] == messages
    sender.join()
    here.close()
    there.close()


def test_silence_and_closing_are_told_apart(ends: tuple[MessageSocket, MessageSocket]) -> None:
    here, there = ends
    with pytest.raises(TimeoutError):
        there.receive(0.05)
    here.close()
    with pytest.raises(SocketClosed):
        there.receive(5.0)
    there.close()
