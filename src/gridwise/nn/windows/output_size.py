"""The `output_size` that a call of a layer may ask for: that of the global output, the same on all workers."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from ...comm.agreement import all_same, gather_lines
from ...comm.transports.base import Team, Transport
from ...errors import PartitionError

OutputSize = tuple[int, ...] | None


def as_size(given: Iterable[int] | None = None) -> OutputSize:
    """The given numbers as Python integers; a number that is not whole raises TypeError."""
    return None if given is None else tuple(map(operator.index, given))


def problem_with_output_size(given: Iterable[int] | None = None) -> str | None:
    """What is wrong with an `output_size`; None if nothing is."""
    try:
        as_size(given)
    except TypeError:
        return f"needs whole numbers as `output_size`, got {given!r}"
    return None


def agree_output_size(transport: Transport, team: Team, what: str, size: OutputSize) -> None:
    """Raise on all workers if they ask for different sizes."""
    if not all_same(transport, team, what, repr(size)):
        reports = gather_lines(transport, team, f"output_size={size}")
        fix = "ask for the size of the global output, on all workers alike."
        raise PartitionError(f"{what}: the workers ask for different `output_size`.", reports, fix)
