"""Data that print as tables: in a terminal through rich, in a notebook as HTML. Cells are never parsed as markup."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .html import escape as escape_html
from .html import table as html_table

if TYPE_CHECKING:
    from rich.console import Group

Lines = Sequence[Sequence[str]]
"""The cells of a table; the first line is its header."""


class PrintsAsTables:
    """Base class: a subclass defines its tables; the last line of each may be a total."""

    _words = 1
    """How many of the first columns are words; the others are numbers."""
    _has_total = False

    def _tables(self) -> Sequence[tuple[Lines, str]]:
        """Each table, and its title."""
        raise NotImplementedError

    def _notes(self) -> Sequence[str]:
        """Lines of text below the tables."""
        return ()

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        made: list[Table | Text] = []
        for lines, title in self._tables():
            header, *body = [[escape(cell) for cell in cells] for cells in lines]
            footer = body.pop() if self._has_total else [""] * len(header)
            table = Table(title=escape(title), title_justify="left", show_footer=self._has_total)
            for at, (name, foot) in enumerate(zip(header, footer, strict=True)):
                side = "left" if at < self._words else "right"
                table.add_column(name, foot, justify=side, overflow="fold")  # type: ignore[arg-type]
            for cells in body:
                table.add_row(*cells)
            made.append(table)
        return Group(*made, *map(Text, self._notes()))

    def __str__(self) -> str:
        from rich.console import Console

        text, columns = io.StringIO(), [zip(*lines, strict=True) for lines, _ in self._tables()]
        widths = [4 + sum(max(map(len, cells)) + 3 for cells in table) for table in columns]
        Console(file=text, width=max(110, *widths), force_jupyter=False).print(self)
        return text.getvalue().rstrip()

    def _html_tables(self) -> list[str]:
        return [html_table(*table, left=self._words, has_total=self._has_total) for table in self._tables()]

    def _repr_html_(self) -> str:
        return "".join([*self._html_tables(), *(f"<p>{escape_html(line)}</p>" for line in self._notes())])


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
    """The size and the name of the unit that suits a number of bytes."""
    place = min(max(0, size.bit_length() - 1) // 10, 4)
    return 1024**place, ("B", "KiB", "MiB", "GiB", "TiB")[place]


def seconds_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:,.1f} {unit}"
    return f"{seconds / 1e-6:,.1f} us"


def spelt(extents: Sequence[int]) -> str:
    """A shape, as in "2 x 3"."""
    return " x ".join(map(str, extents))
