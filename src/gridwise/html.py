"""HTML tables for notebooks. Cells are plain text: users' tensor names are escaped here, in one place."""

from __future__ import annotations

import html
from collections.abc import Sequence

escape = html.escape


def table(lines: Sequence[Sequence[str]], caption: str = "", left: int = 1, has_total: bool = False) -> str:
    """A table whose first line is the header and whose last may be a total; the first `left` columns are left-aligned."""

    def row(cells: Sequence[str], tag: str) -> str:
        sides = ("left" if at < left else "right" for at in range(len(cells)))
        parts = (
            f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    header, *body = lines
    foot = f"<tfoot>{row(body.pop(), 'th')}</tfoot>" if has_total else ""
    title = f'<caption style="text-align:left">{escape(caption)}</caption>' if caption else ""
    rows = "".join(row(cells, "td") for cells in body)
    return f"<table>{title}<thead>{row(header, 'th')}</thead><tbody>{rows}</tbody>{foot}</table>"
