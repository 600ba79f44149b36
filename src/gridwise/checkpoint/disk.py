"""The only calls that change files: write, sync, rename, remove. One place to read, and one place to inject faults.

A file is safe when it *and* the folder that names it are synced; a rename is safe when the folder is synced after it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from ..errors import CheckpointBusy, CheckpointError
from ..log import logger
from .format.chunks import Memory
from .store_path import Place, StorePath

MOST_BUFFERS = 512
"""Most buffers in one system call: half of Linux's limit, and all that some systems accept."""

ATTEMPTS = 100
"""How often a lock is taken whose file is removed at that very moment."""

NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def create(path: Path) -> int:
    """A new file, open for writing; an existing one is an error."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def new_file(path: Place) -> Iterator[Callable[[Buffers], None]]:
    """A function that writes to a new file; the file is on the disk, or in the store, when the body has ended."""
    if isinstance(path, StorePath):
        with path.written() as file:
            yield lambda buffers: file.writelines(memoryview(each).cast("B") for each in buffers)
        return
    fd = create(path)
    try:
        yield lambda buffers: write(fd, buffers)
        sync(fd)
    finally:
        os.close(fd)


Buffers: TypeAlias = "Sequence[memoryview | Memory]"


def write(fd: int, buffers: Buffers) -> None:
    """Write all bytes of all buffers, in order, from the current position on."""
    for first in range(0, len(buffers), MOST_BUFFERS):
        left = buffers[first : first + MOST_BUFFERS]
        while left:
            left = after(left, os.writev(fd, left))


def after(buffers: Buffers, done: int) -> Buffers:
    """What is left of the buffers after the first `done` bytes."""
    if done == sum(map(len, buffers)):
        return ()
    place = 0
    while done >= len(buffers[place]):
        done -= len(buffers[place])
        place += 1
    return [memoryview(buffers[place]).cast("B")[done:], *buffers[place + 1 :]]


def write_file(path: Path, data: bytes) -> None:
    """Write a new file with these bytes; it is on the disk when this returns."""
    with new_file(path) as put:
        put([memoryview(data)])


def sync(fd: int) -> None:
    """Return when the file is on the disk."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # on macOS, fsync leaves the bytes in the drive's cache
    else:
        os.fsync(fd)


def sync_folder(path: Path) -> None:
    """Return when the names in the folder are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Replace `target` with `source` atomically: every process sees either the old file or the new one."""
    os.replace(source, target)


def make_folder(path: Path) -> None:
    path.mkdir()


def remove(path: Place) -> None:
    """Remove a file or a folder as far as possible; what remains is left for next time, without an error."""
    if isinstance(path, StorePath):
        with contextlib.suppress(CheckpointError):
            path.remove_all()
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def unlink(path: Path) -> None:
    """Remove a file, or raise; one that is not there is no error."""
    path.unlink(missing_ok=True)


class Lock:
    """The lock of a checkpoint's folder, held until `close`; raises `CheckpointBusy` if another save holds it.

    The kernel releases the lock with the process, so a killed save never blocks the next one. A folder that is removed
    takes the file of its lock with it: whoever has opened that file before locks the new one instead.
    """

    def __init__(self, folder: Path) -> None:
        self._fd: int | None = None
        for _ in range(ATTEMPTS):
            self._fd = _locked(folder)
            if _is_at(folder / ".lock", self._fd):
                return
            self.close()
        raise CheckpointBusy(f"other saves keep removing {folder}.\n  fix: save to another path.")

    def close(self) -> None:
        if self._fd is not None:
            # Unlock before closing: a forked child may hold a copy of the descriptor, and with it the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = None


def _locked(folder: Path) -> int:
    """A descriptor of the lock's file, which it holds."""
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise CheckpointBusy(
            f"another save is writing to {folder}: two at once are refused.\n"
            "  fix: wait for it, or save to another path; `Series` gives every step its own."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            os.close(fd)
            raise
        logger.warning("%s: this file system has no locks, a second writer cannot be noticed (%s)", folder, error)
    return fd


def _is_at(path: Path, fd: int) -> bool:
    """Whether this open file is the one at the path, and not one that was removed."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False
