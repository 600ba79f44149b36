"""Read the tables that benchmarks print: boxes drawn by rich, tables of Markdown, and columns under a heading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Table:
    """Rows of cells by the names of their columns; a repeated name gets a number (`x bare`, `x bare 2`)."""

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]

    @classmethod
    def of(cls, columns: list[str], rows: list[list[str]]) -> Table:
        names: list[str] = []
        for name in columns:
            seen = sum(re.sub(r" \d+$", "", other) == name for other in names)
            names.append(f"{name} {seen + 1}" if seen else name)
        return cls(tuple(names), tuple(dict(zip(names, row, strict=False)) for row in rows))


def number(cell: str) -> float:
    """The first number of a cell: 128.88 of "128.88 ms", 7232 of "7,232"."""
    found = NUMBER.search(cell)
    if found is None:
        raise ValueError(f"there is no number in {cell!r}")
    return float(found[0].replace(",", ""))


def tables_in(text: str) -> list[Table]:
    """The tables of a section, those of rich and of Markdown, in their order."""
    return list(_tables(text.splitlines()))


def _tables(lines: list[str]) -> Iterator[Table]:
    columns: list[str] = []
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        if line.startswith(("┃", "│", "|")):
            cells = [cell.strip() for cell in re.split("[┃│|]", line)[1:-1]]
            if not columns:
                columns = cells
            elif line.startswith("┃"):  # the rest of a heading
                columns = [f"{above} {below}".strip() for above, below in zip(columns, cells, strict=True)]
            elif not all(re.fullmatch(":?-+:?", cell) for cell in cells):
                _add(rows, cells)
        elif columns and not line.startswith(("┡", "├", "┏", "└")):
            yield Table.of(columns, rows)
            columns, rows = [], []


def _add(rows: list[list[str]], cells: list[str]) -> None:
    """A row, or what its first cell has on a second line."""
    if rows and cells[0] and not any(cells[1:]):
        rows[-1][0] += f" {cells[0]}"
    else:
        rows.append(cells)


def columns_in(text: str) -> list[tuple[str, Table]]:
    """Tables that are aligned with spaces, each with the line above it: their headings begin further right than their rows."""
    lines = [*text.splitlines(), ""]
    found = []
    for at, line in enumerate(lines):
        if at and re.match(r"\s{10,}\S", line) and re.match(r"\S.* {2,}-?\d", lines[at + 1]):
            end = next(i for i in range(at + 1, len(lines)) if not re.match(r"\S.* {2,}-?\d", lines[i]))
            rows = [re.split(r" {2,}", row.strip()) for row in lines[at + 1 : end]]
            found.append((lines[at - 1].strip(), Table.of(["", *re.split(r" {2,}", line.strip())], rows)))
    return found
