"""A data file that is open for reading, and whose bytes can be inspected in the page cache without a copy.

Bytes that are in the page cache already are mapped: checking them then costs no copy. All others are read, at the speed
of the disk; a broken disk then raises an error, where touching mapped memory would end the process. Whether bytes are
cached is tested without waiting (RWF_NOWAIT); where the system or file system does not support that, they are read.
Pages are dropped from the mapping after use, so that it never counts as this process's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ...errors import CheckpointDamaged
from ..disk import Buffers, after
from ..format.chunks import CHUNK
from ..format.data_file import ID_KEY
from ..format.manifest import StoredFile
from ..format.open_inside import open_inside

NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)

preadv2: Any = getattr(ctypes.CDLL(None), "preadv2", None)
"""The C library's, which takes addresses and sizes as an array, without a Python object for each place."""
if preadv2 is not None:
    preadv2.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int)
    preadv2.restype = ctypes.c_ssize_t

POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ, for which Python has no name: map these pages now, or fail."""

PAGE = mmap.PAGESIZE


class DataFile:
    """An open data file, from a descriptor of `open_checked`, which it owns and closes."""

    def __init__(self, fd: int, stored: StoredFile, may_map: bool = True) -> None:
        self._fd = fd
        self._seen = self._last_change()
        self._mapping: mmap.mmap | None = None
        if NOWAIT is not None and may_map:
            with contextlib.suppress(OSError, ValueError):
                self._mapping = mmap.mmap(self._fd, stored.size, mmap.MAP_SHARED, mmap.PROT_READ)

    def close(self) -> None:
        if self._mapping is not None:
            with contextlib.suppress(BufferError):  # a traceback still refers to it, and frees it later
                self._mapping.close()
            self._mapping = None
        os.close(self._fd)

    def has_changed(self) -> bool:
        """Whether the file may have been written to since it was opened."""
        return self._last_change() != self._seen

    def _last_change(self) -> tuple[int, int, int]:
        status = os.fstat(self._fd)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns  # the last cannot be set back

    def read_cached(self, offset: int, addresses: np.ndarray, sizes: np.ndarray) -> bool:
        """Read only from the page cache, to these addresses one after the other; whether all bytes were there."""
        if NOWAIT is None or preadv2 is None or ctypes.sizeof(ctypes.c_void_p) != addresses.itemsize:
            return False
        places = np.stack((addresses, sizes), axis=1)  # an array of `struct iovec`
        return bool(preadv2(self._fd, places.ctypes.data, len(places), offset, NOWAIT) == sizes.sum())

    def read(self, offset: int, places: Buffers) -> int:
        """Read from `offset` on into the places, one after the other; the number of bytes that are missing."""
        return _read(self._fd, offset, places)

    @contextlib.contextmanager
    def bytes(self, offset: int, size: int, may_map: bool) -> Iterator[tuple[memoryview, int]]:
        """A view of the bytes from `offset` on, and how many are missing.

        Mapped bytes change if another program writes to the file: a caller that uses their values must not map them.
        """
        start = offset - offset % PAGE
        length = offset + size - start
        mapping = self._mapping
        if may_map and mapping is not None and is_cached(self._fd, offset, size):
            try:
                mapping.madvise(POPULATE_READ, start, length)
            except OSError:
                self._mapping = None  # reading reports what is wrong, if anything is
            else:
                with memoryview(mapping) as everything, everything[offset : offset + size] as view:
                    yield view, 0
                mapping.madvise(mmap.MADV_DONTNEED, start, length)
                return
        if len(getattr(_own, "buffer", b"")) < size:
            _own.buffer = memoryview(bytearray(size))
        view = _own.buffer[:size]
        yield view, _read(self._fd, offset, [view])


def is_cached(fd: int, offset: int, size: int) -> bool:
    """Whether the first and the last of these bytes of an open file are in the page cache; if so, probably all are."""
    if NOWAIT is None:
        return False
    byte = bytearray(1)
    try:
        return all(os.preadv(fd, [byte], at, NOWAIT) == 1 for at in (offset, offset + size - 1))
    except OSError:
        return False


_own = threading.local()


def _read(fd: int, offset: int, places: Buffers) -> int:
    left = places
    while left and (done := os.preadv(fd, left, offset)):
        left = after(left, done)
        offset += done
    return sum(map(len, left))


def open_checked(path: Path, stored: StoredFile, key: str, save_id: str | None) -> int:
    """Open a data file of the save `save_id` and check its kind, size and header; `key` is a tensor in it, for errors.

    Without an id it is a file that another program has written, and a link to it is followed.
    """
    says = f"file {path.parent.name}/{path.name}, tensor {key!r}"
    try:
        if save_id is None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        else:
            fd = open_inside(path.parent.parent, path.parent.name, path.name)
    except FileNotFoundError:
        raise MissingFile(f"{says}: the file is missing from {path.parent}. Nothing was changed.") from None
    except OSError as error:
        raise CheckpointDamaged(f"{says}: cannot be opened: {error}. Nothing was changed.") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointDamaged(f"{says}: this is no regular file. Nothing was changed.")
        if status.st_size != stored.size:
            raise CheckpointDamaged(
                f"{says}: the file has {status.st_size} bytes, saved were {stored.size}. Nothing was changed."
            )
        start, found = _header(fd, stored.header)
        if found != stored.header_sum:
            if save_id is None:
                raise CheckpointDamaged(f"{says}: another file has taken its place meanwhile. Nothing was changed.")
            hint = "" if f'"{ID_KEY}":"{save_id}"'.encode() in start else ", it belongs to another save"
            raise CheckpointDamaged(f"{says}: the header is not the one that was saved{hint}. Nothing was changed.")
    except OSError as error:
        os.close(fd)
        raise CheckpointDamaged(f"{says}: cannot be read: {error}. Nothing was changed.") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _header(fd: int, size: int) -> tuple[bytes, str]:
    """The start of a header of `size` bytes, which includes the id, and the checksum of all, read chunk by chunk."""
    hasher = xxhash.xxh3_64()
    start = os.pread(fd, min(CHUNK, size), 0)
    hasher.update(start)
    done = len(start)
    while done < size and (piece := os.pread(fd, min(CHUNK, size - done), done)):
        hasher.update(piece)
        done += len(piece)
    return start, hasher.hexdigest() if done == size else ""


class MissingFile(CheckpointDamaged):
    """A data file does not exist: removed, or replaced by a newer save while it was being opened."""
