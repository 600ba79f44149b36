"""Pictures of who owns what: the blocks of layouts, side by side, one colour per worker.

Drawn from geometry alone, so one process can draw a grid of any size. matplotlib is imported when needed
(`pip install 'gridwise[viz]'`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PartitionError, UnsupportedError
from ..grid import Box, Layout
from ..grid.drawing import COLOURS
from ..local_path import local_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def owners(
    layouts: Layout | Mapping[str, Layout],
    path: str | Path | None = None,
    dims: Sequence[int] | None = None,
    image: np.ndarray | None = None,
    needs: Mapping[str, Mapping[int, Box]] | None = None,
    title: str = "",
) -> Figure:
    """Draw which worker owns which part of each tensor; save it as `path` if given.

    Parameters
    ----------
    layouts : one layout, or several by name, drawn side by side
    path : where to save the picture
    dims : the two dims to draw (rows, columns), negative ones from the end; default: the last two. A 1-D tensor is
        drawn as one row.
    image : a picture to show through the blocks, of the shape of the drawn dims
    needs : per name, boxes that workers need beyond their blocks, drawn as dashed outlines

    Examples
    --------
    >>> from gridwise.grid import Grid, Layout
    >>> layout = Layout.balanced(Grid((0, 1, 2, 3), (2, 2)), (5, 7))
    >>> figure = gridwise.show.owners({"a 5 x 7 tensor": layout})
    """
    named = {"": layouts} if isinstance(layouts, Layout) else dict(layouts)
    if not named:
        raise PartitionError("`layouts` is empty: there is nothing to draw.")
    for name in needs or ():
        if name not in named:
            raise PartitionError(f"`needs` names {name!r}, which is none of `layouts`: {', '.join(map(repr, named))}.")
    drawn = {name: _dims_of(layout, dims) for name, layout in named.items()}
    figure = new_figure(3.4 * len(named) + 0.4, 3.9)
    axes = figure.subplots(1, len(named), squeeze=False)[0]
    for ax, (name, layout) in zip(axes, named.items(), strict=True):
        _draw(ax, name, layout, drawn[name], image, (needs or {}).get(name, {}))
    if title:
        figure.suptitle(title)
    return saved(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, with its size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError("pictures need matplotlib.\n  fix: pip install 'gridwise[viz]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, written to `path` if there is one."""
    if path is not None:
        local_path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
    return figure


def _dims_of(layout: Layout, dims: Sequence[int] | None) -> tuple[int, int]:
    """Rows and columns, counted from the front; -1 for the rows of a 1-D tensor."""
    count = len(layout.global_shape)
    if dims is None:
        return count - 2, count - 1
    if len(dims) != 2 or not all(-count <= dim < count for dim in dims):
        raise PartitionError(
            f"`dims` (={tuple(dims)}) must name two of the {count} dims of a tensor of {tuple(layout.global_shape)}."
        )
    return dims[0] % count, dims[1] % count


def _draw(
    ax: Axes, name: str, layout: Layout, dims: tuple[int, int], image: np.ndarray | None, needs: Mapping[int, Box]
) -> None:
    from matplotlib.patches import Rectangle

    shape = layout.global_shape
    rows, columns = dims
    height = shape[rows] if rows >= 0 else 1
    width = shape[columns]
    if image is not None:
        ax.imshow(image, cmap="gray", extent=(0, width, height, 0), aspect="auto")
    drawn: dict[tuple[Any, ...], list[int]] = {}
    for rank, box in layout.blocks():
        drawn.setdefault(_rectangle(box, rows, columns), []).append(rank)
    for (left, top, wide, high), ranks in drawn.items():
        if not wide or not high:
            continue
        colour = COLOURS[ranks[0] % len(COLOURS)]
        ax.add_patch(
            Rectangle((left, top), wide, high, facecolor=colour, alpha=0.35 if image is not None else 0.8, lw=0)
        )
        ax.add_patch(Rectangle((left, top), wide, high, fill=False, edgecolor="white", lw=1.5))
        if len(drawn) <= 64:
            words = ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")
            ax.text(left + wide / 2, top + high / 2, words, ha="center", va="center", color="black", fontsize=9)
    for rank, box in needs.items():
        left, top, wide, high = _rectangle(box, rows, columns)
        colour = COLOURS[rank % len(COLOURS)]
        ax.add_patch(Rectangle((left, top), wide, high, fill=False, edgecolor=colour, ls="--", lw=1.8, zorder=3))
    ax.set_xlim(0, max(width, 1))
    ax.set_ylim(max(height, 1), 0)
    ax.set_xlabel(f"dim {columns}")
    if rows >= 0:
        ax.set_ylabel(f"dim {rows}")
    else:
        ax.set_yticks([])
    grid = " x ".join(map(str, layout.grid.shape))
    ax.set_title(f"{name}\n{' x '.join(map(str, shape))} on {grid}".strip(), fontsize=9)


def _rectangle(box: Box, rows: int, columns: int) -> tuple[int, int, int, int]:
    top, high = (box.start[rows], box.shape[rows]) if rows >= 0 else (0, 1)
    return box.start[columns], top, box.shape[columns], high
