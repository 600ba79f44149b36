"""A process that reads batches for a worker. It is a child of the worker, and no worker itself.

    worker     ── the reader, then one request at a time ──►   process
               ◄── dtypes and shapes, then the bytes, of a batch; or the text of an error ──

They share a socket that nobody else has. The process ends when its other end is closed, however the worker ends, and
leaves nothing behind. It starts with an environment of its own, without the launcher's variables, which would make it
believe that it is a worker.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading

import torch
from torch import Tensor

from ..comm.launching.start import clean, spelt_exit
from ..errors import DataError
from .reader import Batch, ReadRequest, SampleReader, tried

START = "import sys; from gridwise.data.reading_process import main; main(int(sys.argv[1]))"
LENGTH = 8
"""Bytes that say how many bytes follow."""


class ReadingProcess:
    """The worker's end."""

    def __init__(self, packed_reader: bytes) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", START, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=_environment(), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        _send(self._socket, packed_reader)

    def read(self, request: ReadRequest) -> Batch:
        """The batch, or the error of the reader; OSError or EOFError if the process has died."""
        _send(self._socket, pickle.dumps(request))
        found: str | list[tuple[torch.dtype, torch.Size]] = pickle.loads(_received(self._socket))
        if isinstance(found, str):
            return DataError(found)
        blocks = [torch.empty(shape, dtype=dtype, device="cpu") for dtype, shape in found]
        for block in blocks:
            _receive_into(self._socket, _bytes_of(block))
        return blocks

    def end(self) -> str:
        """End the process; how it has ended."""
        self._socket.close()
        return spelt_exit(self._process.wait())


def _environment() -> dict[str, str]:
    """The environment of such a process, which finds all modules that this one finds."""
    new = clean(os.environ)
    paths = [*new.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    new["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    return new


def main(fd: int) -> None:
    """Answer requests until the worker has gone."""
    torch.set_num_threads(1)
    with socket.socket(fileno=fd) as connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        reader: SampleReader = pickle.loads(_received(connection))
        requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
        while True:
            found = tried(reader, pickle.loads(requests.get()))
            if isinstance(found, Exception):
                _send(connection, pickle.dumps(str(found)))
                continue
            _send(connection, pickle.dumps([(block.dtype, block.shape) for block in found]))
            for block in found:
                connection.sendall(_bytes_of(block.contiguous()))


def _listen(connection: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    """Take requests, also while one is being answered: the worker may end meanwhile."""
    try:
        while True:
            requests.put(_received(connection))
    except (EOFError, OSError):
        os._exit(0)


def _bytes_of(block: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return block.reshape(-1).view(torch.uint8).numpy().data if block.numel() else memoryview(b"")


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(LENGTH, "little"))
    connection.sendall(data)


def _received(connection: socket.socket) -> bytes:
    length = bytearray(LENGTH)
    _receive_into(connection, memoryview(length))
    data = bytearray(int.from_bytes(length, "little"))
    _receive_into(connection, memoryview(data))
    return bytes(data)


def _receive_into(connection: socket.socket, buffer: memoryview) -> None:
    """Fill all of the buffer; EOFError if the other end is closed before."""
    place = 0
    while place < len(buffer):
        count = connection.recv_into(buffer[place:])
        if not count:
            raise EOFError
        place += count
