"""What can be switched on and off: by an environment variable for a whole run, and while a body runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class Switch:
    """On or off; off or on again after a body."""

    def __init__(self, variable: str, default: str) -> None:
        value = os.environ.get(variable, default).lower()
        if value not in ("on", "off"):
            raise ValueError(f"`{variable}` (={value!r}) must be on or off.")
        self.on = value == "on"

    @contextmanager
    def to(self, enabled: bool) -> Iterator[None]:
        before, self.on = self.on, enabled
        try:
            yield
        finally:
            self.on = before
