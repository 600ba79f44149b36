"""Arrays in a store, by an address: s3://bucket/volume.zarr, and whatever else fsspec has a driver for.

| format | what is fetched |
|---|---|
| .npy | the ranges of the block; those closer than `GAP` to one another come as one |
| Zarr, OME-Zarr | the chunks that overlap the block |
| HDF5 | pieces of `PIECE` bytes in which h5py reads |

Every process that reads has a driver of its own. Errors name the address.
"""

from __future__ import annotations

import io
import math
import os
import re
from typing import IO, Any

import numpy as np

from ...errors import DataError
from .source import OpenedSource, Slices, native, reading

GAP = 64 << 10
"""Bytes that are fetched for nothing rather than by a request of their own."""
PIECE = 1 << 20
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+(?:::[A-Za-z0-9+.:-]*?)?):(/+)(.*)", re.DOTALL)


def address_of(given: str | os.PathLike[str]) -> str | None:
    """The address of a store that a user means, or None for a path; `file:///data` is a path (see `local_part`)."""
    found = _ADDRESS.match(os.fspath(given))
    if found is None or found[1].lower() == "file":
        return None
    return f"{found[1]}://{'/' if len(found[2]) > 2 else ''}{found[3]}"  # a Path has made one slash of two


def local_part(given: str | os.PathLike[str]) -> str:
    """The path of a file system, also of `file:///data`."""
    found = _ADDRESS.match(os.fspath(given))
    if found is None:
        return os.fspath(given)
    if len(found[2]) == 2 and not found[3].startswith("localhost/"):
        raise DataError(
            f"{given} is no address of a file.", fix="after `file:` comes an absolute path: file:///data/x.npy."
        )
    return "/" + found[3].removeprefix("localhost/")


def driver_of(address: str) -> tuple[Any, str]:
    """The file system of fsspec and the path in it."""
    scheme = address.partition("://")[0]
    if "::" in scheme:
        raise DataError(
            f"{address} is chained, and chained addresses are not opened.", fix="open it, and give the array."
        )
    from fsspec.core import url_to_fs

    try:
        store, key = url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{address} is the address of a store, and no driver for {scheme}:// can be used: {error}",
            fix="install fsspec's driver (s3fs for s3://: pip install 'gridwise[remote]'), or give a path or an array.",
        ) from None
    return store, str(key)


class StoredNpySource(OpenedSource):
    """An array in a .npy object of a store."""

    def __init__(self, address: str) -> None:
        self.label = self.address = address
        with reading(self.label), self._opened_object() as file:
            version = np.lib.format.read_magic(file)
            headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in headers:
                raise DataError(f"the version {version} of its format is not known.")
            self.shape, self.is_fortran, self.stored = headers[version](file)
            self.offset = file.tell()
            self.dtype = native(self.stored, self.label)
            store, key = driver_of(address)
            length, end = int(store.info(key)["size"]), self.offset + math.prod(self.shape) * self.stored.itemsize
            if length < end:
                raise DataError(f"{self.label} ends too early: it has {length} bytes, its array takes {end}.")

    def _opened_object(self) -> IO[bytes]:
        """The start of the object, as long as a header may be."""
        store, key = driver_of(self.address)
        return io.BytesIO(store.cat_file(key, start=0, end=GAP))

    def _open(self) -> tuple[Any, str]:
        return driver_of(self.address)

    def _read(self, slices: Slices, out: np.ndarray) -> None:
        wanted, to, extents = slices, out, self.shape
        if self.is_fortran:
            wanted, to, extents = slices[::-1], out.T, self.shape[::-1]
        starts, length = runs_of(wanted, extents)
        size = self.stored.itemsize
        found = self._fetched(self.offset + starts * size, length * size)
        shape = tuple(rows.stop - rows.start for rows in wanted)
        to[...] = np.frombuffer(found, self.stored).reshape(shape)

    def _fetched(self, starts: np.ndarray, length: int) -> bytes:
        """The bytes of all runs, of one length each, one after the other."""
        store, key = self.opened
        is_first = np.append(True, np.diff(starts) > length + GAP)
        firsts = np.flatnonzero(is_first)
        begin, end = starts[firsts], starts[np.append(firsts[1:], len(starts)) - 1] + length
        parts = store.cat_ranges([key] * len(firsts), begin.tolist(), end.tolist(), on_error="raise")
        for part, a, b in zip(parts, begin, end, strict=True):
            if len(part) != b - a:
                raise DataError(f"{self.label} ends too early: {len(part)} of {b - a} bytes from {a} on are there.")
        which = np.cumsum(is_first) - 1
        places = (starts - begin[which]).tolist()
        return b"".join(parts[w][p : p + length] for w, p in zip(which.tolist(), places, strict=True))


def runs_of(slices: Slices, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """The runs of neighbouring elements of a box in a row-major array: where each starts, and the length of all."""
    whole, length = len(shape), 1
    while whole and (slices[whole - 1].start, slices[whole - 1].stop) == (0, shape[whole - 1]):
        whole -= 1
        length *= shape[whole]
    starts = np.zeros(1, dtype=np.int64)
    for d, rows in enumerate(slices[:whole]):
        below = math.prod(shape[d + 1 :])
        if d == whole - 1:
            length *= rows.stop - rows.start
            starts = starts + rows.start * below
        else:
            starts = (starts[:, None] + np.arange(rows.start, rows.stop) * below).ravel()
    return starts, length
