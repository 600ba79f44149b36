"""Progress bars: drawn by worker 0 only, in a terminal or a notebook; never into files and pipes.

A bar is one line of text that overwrites itself, so it needs no widgets. Workers that `gridwise.launch` has started from a
notebook write into its cell.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TextIO, TypeVar

from .log import is_first_worker

NOTEBOOK = "GRIDWISE_NOTEBOOK"
"""The variable by which a launcher tells its workers that a notebook shows their standard error."""
INTERVAL = 0.1
"""Seconds between two updates."""
WIDTH = 30

Item = TypeVar("Item")


class ProgressBar:
    """A bar of `total` steps; it appears after `patience` seconds, and `close` removes it unless it `stays`."""

    def __init__(
        self, text: str, total: int | None, shown: bool | None = None, patience: float = 0.0, stays: bool = True
    ) -> None:
        self.text, self.total, self.stays = text, total, stays
        self.shown = is_first_worker() and (is_watched() if shown is None else shown)
        self._begun = time.monotonic()
        self._next = self._begun + patience
        self._line = ""
        self._stream: TextIO = sys.stderr

    def report(self, done: int, note: str = "") -> None:
        """Show that `done` steps are done."""
        if not self.shown:
            return
        now = time.monotonic()
        is_last = done == self.total and (self._line or now >= self._next)
        if now >= self._next or is_last:
            self._next = now + INTERVAL
            self._draw(self._spelt(done, now - self._begun, note))

    def close(self) -> None:
        """End the line, or erase it unless the bar `stays`."""
        if self._line:
            if not self.stays:
                self._draw("")
            self._stream.write("\n" if self.stays else "\r")
            self._stream.flush()
            self._line = ""

    def _spelt(self, done: int, seconds: float, note: str) -> str:
        if self.total is None:
            return f"{self.text} {done} [{_clock(seconds)}] {note}".rstrip()
        part = min(1.0, done / self.total) if self.total else 1.0
        full = round(part * WIDTH)
        left = f", {_clock(seconds / part - seconds)} left" if 0 < part < 1 else ""
        return f"{self.text} |{'█' * full}{'·' * (WIDTH - full)}| {done}/{self.total} [{_clock(seconds)}{left}] {note}".strip()

    def _draw(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(len(self._line)))
        self._stream.flush()
        self._line = line or self._line


def progress(
    items: Iterable[Item], text: str = "", total: int | None = None, shown: bool | None = None
) -> Iterator[Item]:
    """Iterate over `items`, with a progress bar on worker 0.

    Parameters
    ----------
    items : what to iterate over; the same number on all workers
    text : the label in front of the bar
    total : the number of items; default: their `len`, if they have one
    shown : whether worker 0 draws the bar; default: if standard error is a terminal or a notebook

    Examples
    --------
    >>> [step for step in gridwise.show.progress(range(3), "training")]
    [0, 1, 2]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    bar = ProgressBar(text, total, shown)
    try:
        for done, item in enumerate(items):
            bar.report(done)
            yield item
            bar.report(done + 1)
    finally:
        bar.close()


def is_watched() -> bool:
    """Whether standard error is shown live, in a terminal or a notebook."""
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, or was started by one."""
    if os.environ.get(NOTEBOOK) == "on":
        return True
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return type(found).__name__ == "ZMQInteractiveShell"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
