"""On/off settings: by an environment variable for a whole run, and by a context manager while its body runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...comm.settings import is_on


class Switch:
    """A setting that is on or off; `to` changes it while a body runs."""

    def __init__(self, variable: str, default: str) -> None:
        self.on = is_on(variable, default)

    @contextmanager
    def to(self, enabled: bool) -> Iterator[None]:
        before, self.on = self.on, enabled
        try:
            yield
        finally:
            self.on = before
