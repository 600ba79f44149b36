"""What can be switched on and off: by an environment variable for a whole run, and while a body runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...comm.settings import is_on


class Switch:
    """On or off; off or on again after a body."""

    def __init__(self, variable: str, default: str) -> None:
        self.on = is_on(variable, default)

    @contextmanager
    def to(self, enabled: bool) -> Iterator[None]:
        before, self.on = self.on, enabled
        try:
            yield
        finally:
            self.on = before
