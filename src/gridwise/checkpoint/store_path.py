"""A path in a store, with the part of pathlib's methods that checkpoints use; and which kind of path a user means.

    run/latest, file:///data/run     a path of a file system
    s3://bucket/run                  a `StorePath`: whatever fsspec has a driver for

Making one sends nothing: an address that cannot be used is an error when it is used, so that all workers get it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import CheckpointError

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+(?:::[A-Za-z0-9+.:-]*?)?):(/+)(.*)", re.DOTALL)
"""A scheme, slashes (a `Path` has made one of two), and what follows; or several schemes joined by `::`."""


class StorePath(os.PathLike[str]):
    """A path in a store, by its scheme and what stands behind `scheme://`. As a string it is the address.

    Examples
    --------
    >>> from gridwise.checkpoint.store_path import StorePath
    >>> StorePath("s3", "bucket/run") / "step-1"
    s3://bucket/run/step-1
    """

    def __init__(self, scheme: str, key: str) -> None:
        self.scheme, self.key = scheme, key.rstrip("/")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    __repr__ = __fspath__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: StorePath) -> bool:
        return self.key < other.key

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(self.scheme, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> StorePath:
        return StorePath(self.scheme, self.key.rpartition("/")[0])

    @contextmanager
    def reached(self, doing: str) -> Iterator[tuple[Any, str]]:
        """The file system of fsspec and this path in it. Errors of the store name it; only "not found" stays as it is."""
        try:
            yield _driver(self)
        except (CheckpointError, FileNotFoundError):
            raise
        except Exception as error:
            raise CheckpointError(f"{self} cannot be {doing}: {type(error).__name__}: {error}") from error

    def check(self) -> None:
        """Raise if no driver for the store is installed, or the address is not one of a folder."""
        _driver(self)

    # What there is

    def info(self) -> dict[str, Any] | None:
        """What the store says about this path, anew each time; None if nothing is there."""
        with self.reached("read") as (store, key):
            store.invalidate_cache()
            try:
                return dict(store.info(key))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def exists(self) -> bool:
        return self.info() is not None

    def is_dir(self) -> bool:
        return (self.info() or {}).get("type") == "directory"

    def is_file(self) -> bool:
        return (self.info() or {}).get("type") == "file"

    def size(self) -> int | None:
        """Bytes of the object; None if there is none."""
        found = self.info()
        return None if found is None or found["type"] != "file" else int(found["size"])

    def iterdir(self) -> Iterator[StorePath]:
        """What lies in this folder, if anything does."""
        with self.reached("listed") as (store, key):
            store.invalidate_cache()
            try:
                found = store.ls(key, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return
        names = {item.rstrip("/").rpartition("/")[2] for item in found if item.strip("/") != key.strip("/")}
        yield from (self / name for name in sorted(names))

    def glob(self, pattern: str) -> Iterator[StorePath]:
        """What lies in this folder under a name of this pattern."""
        return (item for item in self.iterdir() if fnmatchcase(item.name, pattern))

    # Reading and writing

    def read_bytes(self, start: int | None = None, stop: int | None = None) -> bytes:
        """The object, or its bytes from `start` up to `stop`: only these are fetched."""
        with self.reached("read") as (store, key):
            return bytes(store.cat_file(key, start=start, end=stop))

    def write_bytes(self, data: bytes) -> None:
        """Put an object there in one request."""
        with self.reached("written") as (store, key):
            store.makedirs(store._parent(key), exist_ok=True)
            store.pipe_file(key, data)

    def touch(self) -> None:
        self.write_bytes(b"")

    @contextmanager
    def written(self) -> Iterator[Any]:
        """A new object, open for writing; it is in the store when the body has ended."""
        with self.reached("written") as (store, key):
            store.makedirs(store._parent(key), exist_ok=True)
            file = store.open(key, "wb")
            try:
                yield file
            except BaseException:
                _discard(file)
                raise
            file.close()

    def unlink(self) -> None:
        with self.reached("removed") as (store, key):
            store.invalidate_cache()
            try:
                store.rm_file(key)
            except FileNotFoundError:
                return

    def remove_all(self) -> None:
        """Remove the object, or the folder and what is in it."""
        with self.reached("removed") as (store, key):
            store.invalidate_cache()
            try:
                store.rm(key, recursive=True)
            except FileNotFoundError:
                return


Place: TypeAlias = Path | StorePath
"""Where a checkpoint is: in a file system, or in a store."""


def place_of(given: str | os.PathLike[str]) -> Place:
    """The path that a user means."""
    if isinstance(given, StorePath):
        return given
    address = _ADDRESS.match(os.fspath(given))
    if address is None:
        return Path(given)
    scheme, slashes, rest = address.groups()
    if scheme.lower() == "file" and (len(slashes) != 2 or rest.startswith("localhost/")):
        return Path("/" + rest.removeprefix("localhost/"))
    # A file system's own path starts with a slash: three of them stand there, or one if a `Path` was given.
    return StorePath(scheme, rest if len(slashes) < 3 else "/" + rest)


def reject_stores(place: Place, what: str) -> Path:
    """The path; an error if it is in a store, where this cannot be done."""
    if isinstance(place, StorePath):
        raise CheckpointError(
            f"{place} is the address of a store, and {what} only in file systems.",
            fix="a path of a file system; checkpoints themselves may lie in stores.",
        )
    return place


def _driver(path: StorePath) -> tuple[Any, str]:
    """The file system of fsspec and the path in it."""
    if "::" in path.scheme or path.scheme.lower() == "file":
        reason = "after `file:` comes an absolute path, file:///data/run" if path.scheme.lower() == "file" else (
            "chained addresses are refused: what is written there may stay in a cache"
        )  # fmt: skip
        raise CheckpointError(f"{path} is no address of a checkpoint.", fix=f"{reason}.")
    if path.key.strip("/").partition("/")[0] == "":
        raise CheckpointError(f"{path} is a whole store, and no folder in it.", fix=f"{path.scheme}://bucket/run.")
    from fsspec.core import url_to_fs

    try:
        store, key = url_to_fs(str(path))
    except (ImportError, ValueError) as error:
        raise CheckpointError(
            f"{path} is the address of a store, and no driver for {path.scheme}:// can be used: {error}",
            fix="install fsspec's driver (s3fs for s3://, gcsfs for gs://, adlfs for abfs://), or give a path of a file "
            "system that all workers see.",
        ) from None
    return store, str(key)


def _discard(file: Any) -> None:
    """Leave an object unfinished, as far as its store can; nobody will read what is there."""
    for step in (file.discard, file.close) if hasattr(file, "discard") else (file.close,):
        try:
            step()
        except Exception:
            continue
