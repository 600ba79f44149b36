"""Open what lies inside a checkpoint's folder. Links there are not followed: they could lead to anybody's files.

A link *to* a checkpoint (`latest`), or to a folder above it, is an ordinary way to it. What is inside is written by saves,
and these make no links.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_REFUSED = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
"""What systems say when O_NOFOLLOW meets a link."""


def open_inside(path: Path, *names: str) -> int:
    """A descriptor for reading the file `names` (folders, then the file) in the checkpoint at `path`.

    An OSError if any of them is a link. A pipe that somebody has put there is opened too, without waiting for its other
    end: whoever reads looks at what it is.
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
