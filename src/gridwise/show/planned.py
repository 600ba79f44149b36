"""A plan as a picture: where on the grid bytes are sent and memory is needed, and which layers send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..planning.report import Plan, Worker
from ..tables import spelt, unit_for
from ..tiles import TilePlan
from .owners import new_figure, saved
from .planned_tiles import planned_tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORWARD, BACKWARD = "#4477aa", "#ee6677"
SHOWN = 16
"""How many layers get a bar: those that send most."""


def planned(plan: Plan | TilePlan, path: str | Path | None = None) -> Figure:
    """Draw a plan: bytes sent and memory of each worker on the grid, and bytes per layer; save it as `path` if given.

    The map shows the two longest axes of the grid, and the largest value along the others. Of a plan of tiles: the time
    of each stage, what its tiles hold, and what is stored.

    Parameters
    ----------
    plan : from `gridwise.plan`, or from the `plan` of a tiled model
    path : where to save the picture

    Examples
    --------
    >>> plan = gridwise.plan(torch.nn.Conv2d(1, 4, 3, padding=1), (1, 1, 4, 8), (1, 1, 64, 64))
    >>> figure = gridwise.show.planned(plan)
    """
    if isinstance(plan, TilePlan):
        return planned_tiles(plan, path)
    figure = new_figure(13, 4)
    sent, memory, layers = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    _map(sent, plan, "sent per step", lambda worker: worker.sent)
    _map(memory, plan, "memory", lambda worker: worker.memory)
    _bars(layers, plan)
    run = f" ({len(plan.workers)} of them run)" if len(plan.workers) < plan.ledger.size else ""
    figure.suptitle(f"{plan.model}, input {spelt(plan.input_shape)}, on {plan.ledger.size} workers{run}")
    return saved(figure, path)


def _map(ax: Axes, plan: Plan, name: str, of: Callable[[Worker], int]) -> None:
    """A square for each place along the two longest axes; places where no worker was run are left out."""
    rows, columns = sorted(np.argsort(plan.grid, kind="stable")[-2:]) if len(plan.grid) > 1 else (None, 0)
    high = [sorted({w.index[axis] for w in plan.workers}) if axis is not None else [0] for axis in (rows, columns)]
    values = np.full((len(high[0]), len(high[1])), np.nan)
    for worker in plan.workers:
        at = tuple(
            places.index(worker.index[axis] if axis is not None else 0)
            for places, axis in zip(high, (rows, columns), strict=True)
        )
        values[at] = np.nanmax([values[at], of(worker)])
    most = max(map(of, plan.workers))
    size, unit = unit_for(most)
    image = ax.imshow(values / size, cmap="viridis", aspect="auto", vmin=0, vmax=most / size or 1)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label=unit)
    for axis, places, put in ((rows, high[0], ax.set_yticks), (columns, high[1], ax.set_xticks)):
        shown = range(0, len(places), max(1, len(places) // 8))
        put(list(shown), [str(places[i]) for i in shown])
        (ax.set_ylabel if put == ax.set_yticks else ax.set_xlabel)("" if axis is None else f"axis {axis} of the grid")
    ax.set_title(f"{name}: balance {plan.balance(of):.2f}", fontsize=10)


def _bars(ax: Axes, plan: Plan) -> None:
    """What the layers send, in the order of the model, the first at the top."""
    ax.set_title("sent at most by a worker, per layer", fontsize=10)
    if not plan.layers:
        ax.set_axis_off()
        ax.text(0.5, 0.5, "nothing is sent", ha="center", va="center", transform=ax.transAxes)
        return
    most = sorted(plan.layers, key=lambda layer: layer.forward + layer.backward)[-SHOWN:]
    layers = [layer for layer in plan.layers if layer in most]
    size, unit = unit_for(max(max(layer.forward, layer.backward) for layer in layers))
    places = np.arange(len(layers))
    forward, backward = (np.array([getattr(layer, way) for layer in layers]) / size for way in ("forward", "backward"))
    ax.barh(places, forward, color=FORWARD, label="forward")
    ax.barh(places, backward, left=forward, color=BACKWARD, label="backward")
    names = [layer.name if len(layer.name) <= 28 else f"{layer.name[:27]}…" for layer in layers]
    ax.set_yticks(places, names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel(unit)
    ax.legend(frameon=False, fontsize=8)
