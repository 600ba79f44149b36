"""The plan beside what happened: per layer and phase, what was predicted and what was measured."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .layer_names import layer_of
from .report import Plan
from .times import AGREEMENT
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
    """Layers in the order of the plan, and after them those that it does not know, such as a loss."""
    volumes = _planned_volumes(plan)
    times = {(row.layer, row.phase): row for row in plan.time.layers if row.layer != AGREEMENT}
    rows = {(row.layer, row.phase): row for row in traced.rows()}
    found = []
    for place in dict.fromkeys([*times, *volumes, *rows]):
        sent, messages = volumes.get(place, (0, 0))
        time, row = times.get(place), rows.get(place)
        found.append(
            Compared(
                *place,
                (sent, row.sent if row else 0),
                (messages, row.messages if row else 0),
                (time.compute if time else 0.0, row.compute if row else 0.0),
                (time.communication if time else 0.0, row.communication if row else 0.0),
            )
        )
    return found


def _planned_volumes(plan: Plan) -> dict[tuple[str, str], tuple[int, int]]:
    """Bytes and messages that the busiest worker sends, each by itself."""
    sums: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for worker in plan.workers:
        for entry in plan.ledger.entries[worker.rank]:
            if entry.kind not in ("control", "receipt"):
                of_worker = sums[layer_of(entry.what), entry.phase][worker.rank]
                of_worker[0] += entry.nbytes
                of_worker[1] += entry.kind == "message"
    return {
        place: (max(each[0] for each in workers.values()), max(each[1] for each in workers.values()))
        for place, workers in sums.items()
    }
