"""A plan of tiles as a picture: which stages take time, what their tiles hold, and what is stored after each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..tables import readable, seconds_text, unit_for
from ..tiles import TilePlan
from .owners import new_figure, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORWARD, BACKWARD, HELD, STORED = "#4477aa", "#ee6677", "#228833", "#ccbb44"
LONGEST = 34
"""Characters of a stage's name that are shown."""


def planned_tiles(plan: TilePlan, path: str | Path | None) -> Figure:
    count = len(plan.stages)
    figure = new_figure(13, max(3.5, 1.6 + 0.22 * count))
    time, held, stored = figure.subplots(1, 3, sharey=True)
    places = np.arange(count)
    forward, backward = (np.array([each[way] for each in plan.times]) for way in (0, 1))
    time.barh(places, forward, color=FORWARD, label="forward")
    if backward.any():
        time.barh(places, backward, left=forward, color=BACKWARD, label="backward")
        time.legend(frameon=False, fontsize=8)
    time.set_title(f"time, {seconds_text(plan.seconds)} in all", fontsize=10)
    time.set_xlabel("s")
    names = [stage.name.split(", ")[0] for stage in plan.stages]
    names = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
    time.set_yticks(places, names, fontsize=8)
    time.invert_yaxis()
    limit = "" if plan.memory is None else f" of {readable(plan.memory)} allowed"
    columns = (
        (held, [stage.peak for stage in plan.stages], HELD, f"a tile holds at most {readable(plan.peak)}{limit}"),
        (stored, plan.stored, STORED, f"stored {'in files' if plan.on_disk else 'in memory'} after the stage"),
    )
    for ax, sizes, colour, title in columns:
        size, unit = unit_for(max(max(sizes, default=0), 1))
        ax.barh(places, np.array(sizes) / size, color=colour)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel(unit)
    figure.suptitle(f"{plan.title}: {plan.tiles:,} tiles, {plan.work:.2f} times the work")
    return saved(figure, path)
