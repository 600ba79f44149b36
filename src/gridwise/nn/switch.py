"""What can be switched on and off: by an environment variable for a whole run, and while a body runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Switch:
    """On or off; off or on again after a body."""

    def __init__(self, variable: str, default: str) -> None:
        opposite = {"on": "off", "off": "on"}[default]
        self.on = (default if os.environ.get(variable, default).lower() != opposite else opposite) == "on"

    @contextmanager
    def to(self, enabled: bool) -> Iterator[None]:
        before, self.on = self.on, enabled
        try:
            yield
        finally:
            self.on = before


def autocasts() -> bool:
    """Whether torch's autocast is on here, for any device that matters."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
