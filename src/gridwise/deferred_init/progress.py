"""A progress bar for materialisations that take long: shown after a second, on worker 0, and gone when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..progress import ProgressBar

PATIENCE = 1.0  # seconds before the bar appears


class Bar:
    """Draws nothing until `PATIENCE` is over."""

    def __init__(self, wanted: bool | None) -> None:
        self._bar = ProgressBar("", None, wanted, PATIENCE, stays=False)

    def report(self, done: int, total: int, what: str = "materialising") -> None:
        """`done` of `total` steps are done."""
        self._bar.text, self._bar.total = what, total
        self._bar.report(done)

    def steps(self, what: str, total: int) -> Callable[[], None]:
        """A function to call after each of `total` steps."""
        done = iter(range(1, total + 1))
        return lambda: self.report(next(done), total, what)

    def close(self) -> None:
        self._bar.close()


@contextmanager
def progress_bar(wanted: bool | None) -> Iterator[Bar]:
    """A bar; with None it shows where a person is watching."""
    bar = Bar(wanted)
    try:
        yield bar
    finally:
        bar.close()
