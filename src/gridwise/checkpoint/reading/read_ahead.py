"""Read-ahead: have the system read a data file from the disk while this worker is still busy with the manifest.

Which bytes a worker needs is known only when the manifest is parsed and the state matched with it; until then the disk
would be idle. Usually a worker needs the file that it has written, so the start of that file is read as a guess. A
wrong guess, or a file that cannot be read, costs the disk a moment and has no other effect.

The file is sent to the null device, which copies nothing, and the system reads ahead in large pieces as for any reader.
POSIX_FADV_WILLNEED, made for this, stops after one read-ahead window; called for each window, it loads page by page,
which costs more processor time than it saves. One call for everything occasionally takes several times as long as pieces.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from ..format.data_file import started
from ..format.open_inside import open_inside
from ..store_path import Place, StorePath
from .open_file import is_cached

MOST_GUESSED = 32 << 20
"""Most bytes of a file that are read as a guess."""

PIECE = 4 << 20
"""Bytes that are sent in one call."""


@contextlib.contextmanager
def reading_ahead(path: Place) -> Iterator[None]:
    """Read the start of a file into the page cache while the body runs, unless it is there already."""
    if isinstance(path, StorePath):
        yield
        return
    with contextlib.ExitStack() as until_then:
        with contextlib.suppress(OSError):
            fd = open_inside(path.parent.parent, path.parent.name, path.name)
            until_then.callback(os.close, fd)
            size = min(os.fstat(fd).st_size, MOST_GUESSED)
            if size and not is_cached(fd, 0, size):
                nowhere = until_then.enter_context(open(os.devnull, "wb", buffering=0)).fileno()
                thread = threading.Thread(target=_send, args=(nowhere, fd, size), name="gridwise-ahead")
                if started(thread):
                    until_then.callback(thread.join)
        yield


def _send(nowhere: int, fd: int, size: int) -> None:
    done = 0
    with contextlib.suppress(OSError):
        while done < size and (sent := os.sendfile(nowhere, fd, done, min(PIECE, size - done))):
            done += sent
