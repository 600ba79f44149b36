"""What a call costs this process: memory of its own, which no file backs, and time. For examples."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MIB = 2**20


class Cost(NamedTuple):
    """Anonymous and shared memory is looked at 500 times a second; pages of mapped files are not counted."""

    grown: float
    """By how many MiB memory grew during the call, at its peak."""
    peak: float
    """MiB of the process at that time."""
    seconds: float


def watched(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Cost]:
    """What the call returns, and what it cost."""
    done, before, begun = threading.Event(), resident(), time.perf_counter()
    peak = [before]

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call(*args, **kwargs)
    finally:
        done.set()
        watcher.join()
    return result, Cost((peak[0] - before) / MIB, peak[0] / MIB, time.perf_counter() - begun)


def resident() -> int:
    """Bytes of this process in memory that no file backs."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))
