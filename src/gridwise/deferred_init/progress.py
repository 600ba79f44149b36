"""A progress bar for materialisations that take long: shown after a second, in a terminal, and gone when done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 1.0  # seconds before the bar appears


class Bar:
    """Draws nothing until `PATIENCE` is over."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.begun = time.monotonic()
        self._rich: Any = None
        self._task: Any = None

    def report(self, done: int, total: int, what: str = "materialising") -> None:
        """`done` of `total` steps are done."""
        if not self.shown or (self._rich is None and time.monotonic() - self.begun < PATIENCE):
            return
        if self._rich is None:
            from rich.progress import Progress

            self._rich = Progress(transient=True)
            self._rich.start()
            self._task = self._rich.add_task(what, total=total)
        self._rich.update(self._task, completed=done, total=total)

    def steps(self, what: str, total: int) -> Callable[[], None]:
        """A function to call after each of `total` steps."""
        done = iter(range(1, total + 1))
        return lambda: self.report(next(done), total, what)

    def close(self) -> None:
        if self._rich is not None:
            self._rich.stop()


@contextmanager
def progress_bar(wanted: bool | None) -> Iterator[Bar]:
    """A bar; with None it shows where standard error is a terminal."""
    bar = Bar(sys.stderr.isatty() if wanted is None else wanted)
    try:
        yield bar
    finally:
        bar.close()
