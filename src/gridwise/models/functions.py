"""Functions with a backward of their own, on blocks."""

from __future__ import annotations

from typing import Any

from .program import Step
from .rules import NoRule


def placed_function(placing: Any, region: Any, inner: list[Step], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Step:
    raise NoRule("Functions are not placed yet")
