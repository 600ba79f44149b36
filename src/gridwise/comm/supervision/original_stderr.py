"""The standard error that the process was started with, to which the last messages of a job are written.

A test runner that captures output replaces it by files, which nobody reads when the job is aborted. So the descriptor is
kept from the import of Gridwise on, in processes started by a launcher; under pytest, from the import of our plugin, which
comes earlier.
"""

from __future__ import annotations

import contextlib
import os
import sys

_kept: list[int] = []


def keep() -> None:
    """Keep a duplicate of the current standard error."""
    if not _kept:
        with contextlib.suppress(OSError):
            plugin = sys.modules.get("gridwise_pytest")
            _kept.append(os.dup(2 if plugin is None else plugin.ORIGINAL_STDERR))


def descriptor() -> int:
    """The descriptor of the standard error that was kept, else of the current one."""
    return _kept[0] if _kept else 2


def say(text: str) -> None:
    """Write lines to the original standard error, after flushing what was printed before."""
    flush_all()
    with contextlib.suppress(OSError):
        os.write(descriptor(), f"{text}\n".encode())


def flush_all() -> None:
    """Flush what was printed, as far as there is a stream to print to."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
