"""HTML tables for notebooks, and pages of tables and bars. Users' names are plain text, escaped here, in one place."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

escape = html.escape
STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
"""Of all pages."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a page may load: nothing."""


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


def chart(title: str, names: Sequence[str], sizes: Sequence[float], texts: Sequence[str]) -> str:
    """A bar for each name, with a text that says its length."""
    longest = max(sizes, default=0) or 1
    lines = [
        f'<div class="line"><span class="name">{escape(name)}</span><span class="bar"><i style="width:'
        f'{100 * size / longest:.1f}%;background:var(--compute)"></i></span><span class="right">{escape(text)}</span></div>'
        for name, size, text in zip(names, sizes, texts, strict=True)
    ]
    return f"<h2>{escape(title)}</h2>{''.join(lines)}"


def page(title: str, about: str, cards: Sequence[tuple[str, str]], parts: Sequence[str]) -> str:
    """A self-contained page: a few figures with their names, and below them parts, which are HTML already."""
    figures = "".join(
        f'<div><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>' for name, value in cards
    )
    body = "".join(f'<section><div class="card">{part}</div></section>' for part in parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>\n{STYLE}</style></head><body><header><h1>{escape(title)}</h1>"
        f'<div class="soft">{escape(about)}</div><div class="cards">{figures}</div></header>{body}</body></html>\n'
    )
