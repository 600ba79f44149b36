"""Have the system read a data file from the disk while this worker is still busy with the manifest.

Which bytes a worker wants is known when the manifest is parsed and the state fitted to it, and all that time the disk would
rest. Mostly a worker wants the file that it has written, so the start of that is read without waiting to be asked. Nothing
follows from it: if the guess is wrong, or cannot be read, that costs the disk a moment and nobody hears of it.

The file is sent to the null device: one call, no copy, and the system reads ahead in large pieces as for any reader.
POSIX_FADV_WILLNEED, made for this, ends after one window of reading ahead; asked for each window, it takes page by page
into memory, which costs more of the processor than is won.

A worker that loads alone reads in pieces, into memory of its own. That costs the processor more, but now and then one call
for everything takes several times as long, which pieces do not (benchmarks/README.md).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from ..format.data_file import started
from ..format.open_inside import open_inside
from .open_file import is_in_memory

MOST = 32 << 20
"""Bytes of a file that are read on a guess."""

PIECE = 4 << 20
"""Bytes that are read in one call by a worker alone."""


@contextlib.contextmanager
def reading_ahead(path: Path, alone: bool = False) -> Iterator[None]:
    """Read the start of a file into the system's memory while the body runs, unless it is there.

    `alone` if no other worker loads at the same time.
    """
    with contextlib.ExitStack() as until_then:
        with contextlib.suppress(OSError):
            fd = open_inside(path.parent.parent, path.parent.name, path.name)
            until_then.callback(os.close, fd)
            size = min(os.fstat(fd).st_size, MOST)
            if size and not is_in_memory(fd, 0, size):
                nowhere = until_then.enter_context(open(os.devnull, "wb", buffering=0)).fileno()
                thread = threading.Thread(
                    target=_read if alone else _send, args=(nowhere, fd, size), name="gridwise-ahead"
                )
                if started(thread):
                    until_then.callback(thread.join)
        yield


def _send(nowhere: int, fd: int, size: int) -> None:
    done = 0
    with contextlib.suppress(OSError):
        # Mostly one call sends everything: whatever else is done here waits for the thread that parses.
        while done < size and (sent := os.sendfile(nowhere, fd, done, size - done)):
            done += sent


def _read(nowhere: int, fd: int, size: int) -> None:
    piece = memoryview(bytearray(min(PIECE, size)))
    with contextlib.suppress(OSError):
        for start in range(0, size, PIECE):
            os.preadv(fd, [piece[: size - start]], start)
