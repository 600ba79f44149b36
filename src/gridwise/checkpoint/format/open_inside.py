"""Open files inside a checkpoint's folder. Links there are not followed: they could lead to anybody's files.

A link *to* a checkpoint (`latest`), or to a folder above it, is allowed. What is inside was written by a save, and
saves make no links.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_REFUSED = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
"""Errors with which systems refuse a link under O_NOFOLLOW."""


def open_inside(path: Path, *names: str) -> int:
    """A descriptor for reading the file `names` (folders, then the file) in the checkpoint at `path`.

    Raises OSError if any of them is a link. A pipe that somebody has put there is opened too, without waiting for its
    other end: the caller checks the kind of file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(path, flags | os.O_DIRECTORY)
    for place, name in enumerate(names, 1):
        folder = fd
        try:
            last = place == len(names)
            fd = os.open(name, flags | os.O_NOFOLLOW | (0 if last else os.O_DIRECTORY), dir_fd=folder)
        except OSError as error:
            if error.errno in _REFUSED and (path.joinpath(*names[:place])).is_symlink():
                text = "is a link, and links inside a checkpoint are not followed"
                raise OSError(errno.ELOOP, text, str(path.joinpath(*names[:place]))) from None
            raise
        finally:
            os.close(folder)
    return fd
