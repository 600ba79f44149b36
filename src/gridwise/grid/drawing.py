"""A layout drawn as SVG: which worker owns what, one colour per worker, halos as dashed lines.

    1-D  a strip            2-D  a sheet, dim 0 downwards            3-D  a cuboid, three faces of it visible
    4-D and 5-D             one cuboid of the last three dims for each block of the leading ones

The text is built from integers alone: no library is needed, and one process can draw a layout of any size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import PartitionError

if TYPE_CHECKING:
    from .layout import Layout

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#ee8866")
LONGEST, SHORTEST = 240.0, 26.0
"""Length of the longest side in pixels, and the least length of any side."""
SLANT = (0.55, -0.4)
"""Offset on screen, right and up, per pixel of the third dim."""
LABELLED, COLOURED, CUBOIDS = 64, 1024, 8
"""The most blocks of a face that are labelled with their worker, and coloured; the most cuboids that are drawn."""

Point = tuple[float, float]
Place = Callable[[float, float], Point]
Halo = Sequence[tuple[int, int]]


class Drawing(str):
    """The text of an SVG picture, which a notebook displays; `save` writes it to a file."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)

    def save(self, path: str) -> None:
        """Write the picture to a file, which should end in .svg."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(str(self))


def draw(layout: Layout, halo: Halo | None = None) -> Drawing:
    """The picture of a layout; `halo` is a pair of rows (before, after) for each dim."""
    count = len(layout.global_shape)
    pairs = tuple(halo or ((0, 0),) * count)
    if len(pairs) != count or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise PartitionError(f"`halo` (={halo}) needs a pair (before, after) of rows for each of {count} dims.")
    if not 1 <= count <= 5:
        raise PartitionError(f"a layout of {count} dims cannot be drawn: 1 to 5 can.")
    shown = list(range(count))[-3:]
    sizes = _pixels([layout.global_shape[dim] for dim in shown])
    places = list(itertools.product(*(range(n) for n in layout.grid.shape[:-3])))
    drawn: list[str] = []
    left = 20.0
    for place in places[:CUBOIDS]:
        depth = sizes[0] if len(shown) == 3 else 0.0
        corner = (left, 24.0 - SLANT[1] * depth)
        drawn.extend(_cuboid(layout, shown, sizes, place, corner, pairs))
        if place:
            drawn.append(_text((left, 14.0), f"block {', '.join(map(str, place))} of {_spelt(count - 3)}", "start"))
        left += sizes[-1] + SLANT[0] * depth + 40.0
    if len(places) > CUBOIDS:
        drawn.append(_text((left, 24.0), f"... {len(places) - CUBOIDS} more", "start"))
    depth = sizes[0] if len(shown) == 3 else 0.0
    high = 24.0 - SLANT[1] * depth + (sizes[-2] if len(shown) > 1 else SHORTEST) + 42.0
    wide = max(left + 30.0, 260.0)
    title = f"{_by(layout.global_shape)} on {_by(layout.grid.shape)} workers"
    drawn.append(_text((20.0, high - 6.0), title, "start"))
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="sans-serif" font-size="11" role="img">'
        f"<title>{title}</title>"
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>'
    )


def _pixels(extents: Sequence[int]) -> list[float]:
    longest = max(*extents, 1)
    return [max(SHORTEST, LONGEST * extent / longest) for extent in extents]


def _cuboid(
    layout: Layout, shown: list[int], sizes: list[float], place: tuple[int, ...], corner: Point, halo: Halo
) -> Iterator[str]:
    """The visible faces: the front, and with three dims also the top and the right side."""
    x, y = corner
    across, down = shown[-1], shown[-2] if len(shown) > 1 else None
    wide, high = sizes[-1], sizes[-2] if len(shown) > 1 else SHORTEST
    start = (*place, *(0 for _ in shown))
    yield from _face(layout, down, across, start, (high, wide), lambda v, u: (x + u, y + v), halo)
    yield _text((x + wide / 2, y + high + 14), f"dim {across}: {layout.global_shape[across]}", "middle")
    if len(shown) == 3:
        back, deep = shown[0], sizes[0]
        top = lambda v, u: (x + u + SLANT[0] * v, y + SLANT[1] * v)  # noqa: E731
        side = lambda v, u: (x + wide + SLANT[0] * u, y + v + SLANT[1] * u)  # noqa: E731
        yield from _face(layout, back, across, start, (deep, wide), top, halo)
        last = (*start[:-1], layout.grid.shape[-1] - 1)
        yield from _face(layout, down, back, last, (high, deep), side, halo)
        yield _text(
            (x + wide + SLANT[0] * deep + 3, y + SLANT[1] * deep - 3), f"dim {back}: {layout.global_shape[back]}", "end"
        )
    if down is not None:
        yield _text((x - 4, y + high / 2), f"dim {down}: {layout.global_shape[down]}", "middle", turned=True)


def _face(
    layout: Layout,
    rows: int | None,
    columns: int,
    at: tuple[int, ...],
    size: tuple[float, float],
    put: Place,
    halo: Halo,
) -> Iterator[str]:
    """The blocks of a face along dims `rows` and `columns`; along the other dims its place on the grid is `at`."""
    down = _lines(layout, rows, size[0])
    right = _lines(layout, columns, size[1])
    blocks = (len(down) - 1) * (len(right) - 1)
    halos: list[str] = []
    for i, j in itertools.product(range(len(down) - 1), range(len(right) - 1)):
        if blocks > COLOURED or down[i] == down[i + 1] or right[j] == right[j + 1]:
            continue
        index = list(at)
        index[columns] = j
        if rows is not None:
            index[rows] = i
        rank = layout.grid.rank_at(tuple(index))
        colour = COLOURS[rank % len(COLOURS)]
        yield _polygon(
            _corners(down[i], down[i + 1], right[j], right[j + 1], put),
            f'fill="{colour}" fill-opacity="0.7" stroke="white"',
        )
        if blocks <= LABELLED:
            middle = put((down[i] + down[i + 1]) / 2, (right[j] + right[j + 1]) / 2)
            yield _text((middle[0], middle[1] + 4), str(rank), "middle")
        halos += _halo(layout, rows, columns, (i, j), (down, right), size, put, halo, colour)
    yield from halos  # on top of all blocks
    if blocks > COLOURED:
        whole = _corners(0, size[0], 0, size[1], put)
        yield _polygon(whole, 'fill="#eeeeee" stroke="#666666"')
        yield _text(put(size[0] / 2, size[1] / 2), f"{blocks} blocks", "middle")


def _halo(
    layout: Layout,
    rows: int | None,
    columns: int,
    block: tuple[int, int],
    lines: tuple[list[float], list[float]],
    size: tuple[float, float],
    put: Place,
    halo: Halo,
    colour: str,
) -> Iterator[str]:
    """The outline of a block with its halo, clipped to the tensor; nothing without a halo."""
    ends: list[float] = []
    for dim, at, line, length in zip((rows, columns), block, lines, size, strict=True):
        before, after = halo[dim] if dim is not None else (0, 0)
        pixel = length / max(1, layout.global_shape[dim]) if dim is not None else 1.0
        ends += [max(0.0, line[at] - before * pixel), min(length, line[at + 1] + after * pixel)]
    if ends != [lines[0][block[0]], lines[0][block[0] + 1], lines[1][block[1]], lines[1][block[1] + 1]]:
        top, bottom, left, right = ends
        outline = _corners(top, bottom, left, right, put)
        yield _polygon(outline, f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="5 3"')


def _lines(layout: Layout, dim: int | None, length: float) -> list[float]:
    """The cut points of a dim, in pixels."""
    if dim is None:
        return [0.0, length]
    extent = max(1, layout.global_shape[dim])
    return [length * cut / extent for cut in layout.cuts[dim]]


def _corners(top: float, bottom: float, left: float, right: float, put: Place) -> list[Point]:
    return [put(top, left), put(top, right), put(bottom, right), put(bottom, left)]


def _polygon(points: Sequence[Point], style: str) -> str:
    return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" {style}/>'


def _text(at: Point, words: str, anchor: str, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {at[0]:.1f} {at[1]:.1f})"' if turned else ""
    return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="#222222"{turn}>{words}</text>'


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _spelt(count: int) -> str:
    return "dim 0" if count == 1 else "dims 0, 1"
