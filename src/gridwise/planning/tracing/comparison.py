"""The plan next to what happened: per layer and phase, what was predicted and what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from ..report import Plan
from ..times import AGREEMENT, LayerRow
from .traced import Traced


@dataclass(frozen=True)
class Compared:
    """A layer in one phase: the most of any worker, per step; first as planned, then as traced."""

    layer: str
    phase: str
    sent: tuple[int, int]
    messages: tuple[int, int]
    compute: tuple[float, float]
    communication: tuple[float, float]


def compare(plan: Plan, traced: Traced) -> list[Compared]:
    """Layers in the order of the plan, followed by those that it does not know, such as a loss."""
    planned, traced_rows = (
        {(row.layer, row.phase): row for row in rows if row.layer != AGREEMENT}
        for rows in (plan.time.layers, traced.rows())
    )
    found = []
    for place in dict.fromkeys([*planned, *traced_rows]):
        a, b = (rows.get(place, LayerRow(*place)) for rows in (planned, traced_rows))
        sent, messages = (a.sent, b.sent), (a.messages, b.messages)
        found.append(Compared(*place, sent, messages, (a.compute, b.compute), (a.communication, b.communication)))
    return found
