"""Tables of plans in a terminal: lines of cells, the first the heads of the columns."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def table(lines: Sequence[Sequence[str]], title: str) -> Any:
    """A table for rich; every cell is text, whatever is in it."""
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=escape(title), title_justify="left")
    for at, name in enumerate(lines[0]):
        made.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    for cells in lines[1:]:
        made.add_row(*map(escape, cells))
    return made


def printed(what: Any, width: int = 110) -> str:
    """What rich would print."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=width, force_jupyter=False).print(what)
    return text.getvalue().rstrip()


def readable(size: int) -> str:
    """A number of bytes in the unit that suits it.

    Parameters
    ----------
    size : a number of bytes

    Examples
    --------
    >>> gridwise.planning.readable(3 * 2**20)
    '3.0 MiB'
    """
    factor, unit = unit_for(size)
    return f"{size:,} B" if factor == 1 else f"{size / factor:,.1f} {unit}"


def unit_for(size: int) -> tuple[int, str]:
    """The unit in which a number of bytes is read best, and its size."""
    place = min(max(0, size.bit_length() - 1) // 10, 4)
    return 1024**place, ("B", "KiB", "MiB", "GiB", "TiB")[place]


def seconds_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:,.1f} {unit}"
    return f"{seconds / 1e-6:,.1f} us"
