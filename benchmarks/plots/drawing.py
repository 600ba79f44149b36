"""One picture: how many times its limit each row takes, on a logarithmic axis, as SVG that any browser shows sharply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from html import escape

from .choice import Plot, Row

COLOURS = ("#1f5fbf", "#d9822b", "#5b9a5b", "#9b59b6", "#8a6d3b")
TICKS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1.1, 1.25, 1.5, 2, 4, 8, 16, 32, 64, 128)
WIDTH, ROW, TOP, BOTTOM, GAP = 860, 22, 62, 44, 12
LETTER = 6.3
"""About the width of a letter, in pixels, at the size of labels."""


def picture(plot: Plot, rows: list[Row]) -> str:
    """The picture as the text of an SVG file."""
    left = GAP + LETTER * max(len(row.label) for row in rows) + GAP
    right = WIDTH - GAP - LETTER * max(len(row.shown) for row in rows) - GAP
    bottom = TOP + ROW * len(rows)
    every = [times for row in rows for times in (*row.times.values(), row.goal) if not math.isnan(times)]
    low, high = min(0.8, 0.9 * min(every)), max(1.25, 1.1 * max(every))

    def x(times: float) -> float:
        return left + (right - left) * math.log(times / low) / math.log(high / low)

    height = bottom + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(GAP, 22, plot.title, 'font-size="15" font-weight="bold"'),
        _text(WIDTH - GAP, 46, "ours / limit" if " / " in rows[0].shown else "ours", 'text-anchor="end" fill="#555"'),
        *_legend(plot, rows),
    ]
    ticks, last = [], -math.inf
    for tick in TICKS:
        if low <= tick <= high and x(tick) - last > 34:
            ticks.append(tick)
            last = x(tick)
    for tick in ticks:
        style = 'stroke="#666" stroke-width="1.5"' if tick == 1 else 'stroke="#ddd"'
        lines.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{bottom}" {style}/>')
        lines.append(_text(x(tick), bottom + 16, _times(tick), 'text-anchor="middle" fill="#555"'))
    axis = f"times what the limit takes; {plot.better}"
    lines.append(_text((left + right) / 2, bottom + 34, axis, 'text-anchor="middle" fill="#555"'))
    for at, row in enumerate(rows):
        lines += _row(row, TOP + ROW * (at + 0.5), x, left, list(row.times))
    return "\n".join([*lines, "</svg>", ""])


def _row(row: Row, y: float, x: Callable[[float], float], left: float, series: list[str]) -> Iterator[str]:
    yield _text(left - GAP, y + 4, row.label, 'text-anchor="end"')
    yield _text(WIDTH - GAP, y + 4, row.shown, 'text-anchor="end" fill="#555"')
    first = row.times[series[0]]
    ends = sorted((x(1), x(first)))
    yield f'<rect x="{ends[0]:.1f}" y="{y - 3:.1f}" width="{ends[1] - ends[0]:.1f}" height="6" fill="#a9c4ea"/>'
    if not math.isnan(row.goal):
        at = f"{x(row.goal):.1f}"
        yield f'<line x1="{at}" x2="{at}" y1="{y - 8}" y2="{y + 8}" stroke="#c0392b" stroke-width="2"/>'
    for name, colour in reversed(list(zip(series, COLOURS, strict=False))):
        fill = colour if name == series[0] else "#fff"
        title = f"<title>{escape(name)}: {row.times[name]:.2f}</title>"
        yield (
            f'<circle cx="{x(row.times[name]):.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" '
            f'stroke-width="2">{title}</circle>'
        )


def _legend(plot: Plot, rows: list[Row]) -> Iterator[str]:
    at: float = GAP
    for index, (name, colour) in enumerate(zip(rows[0].times, COLOURS, strict=False)):
        fill = "#fff" if index else colour
        yield f'<circle cx="{at + 6}" cy="42" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
        yield _text(at + 16, 46, name)
        at += 16 + LETTER * len(name) + 20
    yield f'<line x1="{at + 6}" x2="{at + 6}" y1="34" y2="50" stroke="#666" stroke-width="1.5"/>'
    yield _text(at + 16, 46, f"limit: {plot.limit}")
    at += 16 + LETTER * (len(plot.limit) + 7) + 20
    if not all(math.isnan(row.goal) for row in rows):
        yield f'<line x1="{at + 6}" x2="{at + 6}" y1="34" y2="50" stroke="#c0392b" stroke-width="2"/>'
        yield _text(at + 16, 46, "goal")


def _times(tick: float) -> str:
    return f"1/{1 / tick:g}" if tick < 1 else f"{tick:g}"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more and f" {more}"}>{escape(text)}</text>'
