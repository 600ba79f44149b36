"""The environment variables `GRIDWISE_...`; an invalid value is an error and does not fall back to the default."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping

from ..errors import PartitionError

SWITCHES = ("GRIDWISE_WATCH", "GRIDWISE_SHARED_MEMORY", "GRIDWISE_MALLOC")
"""The switches of this package; on by default."""


def is_on(variable: str, default: str = "on", environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a switch is on."""
    text = environment.get(variable, default)
    if text.lower() not in ("on", "off"):
        raise PartitionError(f"`{variable}` (={text!r}) must be 'on' or 'off'.", fix=f"unset, it is {default}.")
    return text.lower() == "on"


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Raise on invalid values, before any worker waits for another."""
    timeout(environment)
    for variable in SWITCHES:
        is_on(variable, environment=environment)


def count(variable: str, environment: Mapping[str, str] = os.environ) -> int:
    """The value of a variable as a whole number; 0 if it is unset."""
    text = environment.get(variable, "0")
    if not (text.isascii() and text.isdigit()):
        raise PartitionError(f"`{variable}` (={text!r}) must be a whole number.", fix="unset, it is 0.")
    return int(text)


def timeout(environment: Mapping[str, str] = os.environ) -> float:
    """`GRIDWISE_TIMEOUT` in seconds."""
    text = environment.get("GRIDWISE_TIMEOUT", "1800")
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise PartitionError(
        f"`GRIDWISE_TIMEOUT` (={text!r}) must be a number of seconds greater than 0, without a unit.",
        fix="for ten minutes, GRIDWISE_TIMEOUT=600; unset, it is 1800.",
    )
