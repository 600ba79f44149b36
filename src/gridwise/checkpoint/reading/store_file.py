"""A data file in a store: only the ranges that are asked for are fetched.

A load checks everything before it changes anything, which takes two passes. What the first has fetched is kept for the
second, up to a limit for each worker; the rest is fetched twice, and checked twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import xxhash

from ...errors import CheckpointDamaged, CheckpointError
from ..disk import Buffers
from ..format.data_file import ID_KEY
from ..format.manifest import StoredFile
from ..store_path import StorePath
from .open_file import MissingFile

KEPT = 1 << 30
"""Most bytes that a worker keeps from the first pass to the second."""

THREADS = 8
"""Requests that are under way at a time: a store answers each in tens of milliseconds."""


class Kept:
    """Fetched ranges, by object and offset, that are asked for once more."""

    def __init__(self, most: int = KEPT) -> None:
        self._left = most
        self._ranges: dict[tuple[str, int, int], bytes] = {}
        self._lock = threading.Lock()

    def fetched(self, path: StorePath, start: int, size: int) -> bytes:
        """The bytes of a range, fewer if the object ends before."""
        with self._lock:
            data = self._ranges.pop((path.key, start, size), None)
            if data is not None:
                self._left += len(data)
                return data
        data = path.read_bytes(start, start + size)
        with self._lock:
            if len(data) <= self._left:
                self._left -= len(data)
                self._ranges[path.key, start, size] = data
        return data


class StoreFile:
    """A data file in a store, in place of a `DataFile`."""

    def __init__(self, path: StorePath, kept: Kept) -> None:
        self._path, self._kept = path, kept

    def close(self) -> None:
        """Nothing is held open."""

    def has_changed(self) -> bool:
        """Never unnoticed: every byte that is put into place has been compared with its checksum, in either pass."""
        return False

    def read_cached(self, offset: int, addresses: np.ndarray, sizes: np.ndarray) -> bool:
        return False

    def read(self, offset: int, places: Buffers) -> int:
        """Read from `offset` on into the places, one after the other; the number of bytes that are missing."""
        wanted = sum(map(len, places))
        with _as_os_errors():
            data = memoryview(self._kept.fetched(self._path, offset, wanted))
        done = 0
        for place in places:
            target = memoryview(place).cast("B")
            part = data[done : done + len(target)]
            target[: len(part)] = part
            done += len(part)
        return wanted - len(data)

    @contextlib.contextmanager
    def bytes(self, offset: int, size: int, may_map: bool) -> Iterator[tuple[memoryview, int]]:
        """A view of the bytes from `offset` on, and how many are missing."""
        with _as_os_errors():
            data = self._kept.fetched(self._path, offset, size)
        missing = size - len(data)
        yield memoryview(data + bytes(missing) if missing else data), missing


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """The reader reports errors of the system beside the file and the tensor that they concern."""
    try:
        yield
    except CheckpointError as error:
        raise OSError(str(error)) from error


def open_in_store(path: StorePath, stored: StoredFile, key: str, save_id: str, kept: Kept) -> StoreFile:
    """A data file of the save `save_id`, once its size and header are checked; `key` is a tensor in it, for errors."""
    says = f"file {path.parent.name}/{path.name}, tensor {key!r}"
    size = path.size()
    if size is None:
        raise MissingFile(f"{says}: the file is missing from {path.parent}. Nothing was changed.")
    if size != stored.size:
        raise CheckpointDamaged(f"{says}: the file has {size} bytes, saved were {stored.size}. Nothing was changed.")
    header = path.read_bytes(0, stored.header)
    if xxhash.xxh3_64_hexdigest(header) != stored.header_sum:
        hint = "" if f'"{ID_KEY}":"{save_id}"'.encode() in header else ", it belongs to another save"
        raise CheckpointDamaged(f"{says}: the header is not the one that was saved{hint}. Nothing was changed.")
    return StoreFile(path, kept)
