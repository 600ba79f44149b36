"""Where the last words of a job go: the standard error that the process was started with.

A test runner that captures output puts files in its place, which nobody reads when the job is aborted. So the descriptor is
kept from the import on, in processes that are one of many; under pytest from that of its plugin on, which comes earlier.
"""

from __future__ import annotations

import contextlib
import os
import sys

_kept: list[int] = []


def keep() -> None:
    """Keep the standard error of this moment."""
    if not _kept:
        with contextlib.suppress(OSError):
            plugin = sys.modules.get("gridwise_pytest")
            _kept.append(os.dup(2 if plugin is None else plugin.ORIGINAL_STDERR))


def descriptor() -> int:
    """That of the standard error that was kept, else of the present one."""
    return _kept[0] if _kept else 2


def say(text: str) -> None:
    """Write lines there, after what was printed before."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(descriptor(), f"{text}\n".encode())
