"""A plan, a ranking of grids and a trace as one self-contained HTML file: no network, no library.

The numbers are embedded as JSON, and the script in `page.html` draws them. Names come from models and are not trusted: none
is ever parsed as HTML. Characters that could end the JSON's element are escaped, and the script only ever sets text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from ..comm.transports.counting import Entry
from ..grid import Grid, Layout
from ..html import STYLE
from ..local_path import local_path
from .layer_names import layer_of
from .one_step import StepRecord
from .report import Plan
from .roles import grid_of, steps_between
from .search import Ranking
from .tracing.comparison import compare
from .tracing.traced import Traced

TEMPLATE = Path(__file__).parent / "page.html"
MATRIX = 64
"""How many workers the matrix of who sends to whom shows; of more, the first."""
DRAWN = 64
"""How many blocks are drawn along a dim."""


def save_page(path: str | Path, what: Plan | Ranking, traced: Traced | None = None) -> None:
    """Write the page of a plan, or of a ranking and its best plan; with a trace, next to what was measured."""
    target = local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(what, traced), encoding="utf-8")


def page(what: Plan | Ranking, traced: Traced | None = None) -> str:
    """The page as HTML text."""
    ranking = what if isinstance(what, Ranking) else None
    plan = what if isinstance(what, Plan) else _first(what)
    data = {
        **_summary(plan),
        "layers": _layers(plan),
        "curve": _curve(plan),
        "matrix": _matrix(plan),
        "ranking": _ranking(ranking) if ranking else None,
        "traced": _traced(plan, traced) if traced else None,
    }
    template = TEMPLATE.read_text(encoding="utf-8").replace("{{style}}", STYLE)
    return template.replace("{{data}}", as_script(data))


def as_script(data: object) -> str:
    """JSON that is safe inside a script element, whatever it contains."""
    text = json.dumps(data, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _first(ranking: Ranking) -> Plan:
    plan = ranking.rows[0].plan
    assert plan is not None  # `search` raises where no grid can be run
    return plan


def _summary(plan: Plan) -> dict[str, Any]:
    machine = plan.time.machine
    return {
        "model": plan.model,
        "grid": plan.grid,
        "input": plan.input_shape,
        "size": plan.ledger.size,
        "exact": plan.exact,
        "kinds": plan.roles.kinds if plan.roles else None,
        "machine": {"name": machine.name, "source": machine.source, "measured": machine.measured},
        "seconds": {name: getattr(plan.time, name) for name in ("seconds", "compute", "communication", "waiting")},
        "workers": [{**vars(w), "stands_for": n} for w, n in zip(plan.workers, plan.weights, strict=True)],
    }


def _layers(plan: Plan) -> list[dict[str, Any]]:
    """Each layer: time by phase, what the busiest worker sends, how its output is cut, what it holds at the peak."""
    record = _fullest(plan)
    held: dict[str, int] = defaultdict(int)
    for holder in record.holders:
        held[holder.layer] += holder.bytes
    sender = max(plan.workers, key=lambda worker: worker.messages)
    grid = grid_of(plan.grid)
    names = dict.fromkeys([*record.names, *(row.layer for row in plan.time.layers), *(row.name for row in plan.layers)])
    flops: dict[str, int] = defaultdict(int)
    for (layer, _), work in record.work.items():
        flops[layer] += sum(work.flops.values())
    found = []
    for name in names:
        entries = [entry for entry in plan.ledger.entries[sender.rank] if layer_of(entry.what) == name]
        layout = record.layouts.get(name)
        found.append(
            {
                "name": name,
                "phases": {row.phase: vars(row) for row in plan.time.layers if row.layer == name},
                "held": held.get(name, 0),
                "flops": flops.get(name, 0),
                "of": sender.rank,
                "sent": _sent(entries, grid, sender.rank),
                "halo": _halo(plan, name),
                **(_blocks(layout) if layout else {}),
            }
        )
    return found


def _fullest(plan: Plan) -> StepRecord:
    """What the worker does that needs most memory."""
    return max(plan.records, key=lambda record: record.worker.memory)


def _blocks(layout: Layout) -> dict[str, Any]:
    cuts = [list(cuts[: DRAWN + 1]) for cuts in layout.cuts]
    return {"shape": layout.global_shape, "grid": layout.grid.shape, "cuts": cuts}


def _halo(plan: Plan, name: str) -> dict[str, Any] | None:
    """How the input of a layer is cut, and how many rows each worker that was run fetches before and after its block."""
    found = {record.worker.rank: record.halos[name] for record in plan.records if name in record.halos}
    layouts = {halo.layout for halo in found.values()}
    if len(layouts) != 1:
        return None  # nothing is fetched
    (layout,) = layouts
    if layout.grid.ranks != tuple(range(plan.ledger.size)):
        return None  # the page computes a worker's rank from its place
    return {**_blocks(layout), "widths": {rank: halo.widths for rank, halo in found.items()}}


def _sent(entries: list[Entry], grid: Grid, rank: int) -> list[dict[str, Any]]:
    """What a worker sends for a layer, by destination."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for entry in entries:
        if entry.kind in ("control", "receipt"):
            continue
        if entry.kind == "message":
            away = steps_between(grid, rank, entry.peers[0])
            where = "to " + ", ".join(f"{step:+d}" if step else "0" for step in away)
        else:
            where = f"{entry.kind} over {len(entry.peers)} workers"
        both = sums[where, entry.phase]
        both[0] += entry.nbytes
        both[1] += 1
    return [{"where": w, "phase": phase, "bytes": b, "count": n} for (w, phase), (b, n) in sums.items()]


def _curve(plan: Plan) -> dict[str, Any]:
    record = _fullest(plan)
    before = record.worker.memory - max((moment.peak for moment in record.curve), default=0)
    return {
        "rank": record.worker.rank,
        "before": before,
        "moments": [[m.layer, m.phase, before + m.peak, before + m.after] for m in record.curve],
        "holders": [[holder.layer, holder.phase, holder.bytes] for holder in record.holders[:20]],
    }


def _matrix(plan: Plan) -> dict[str, Any]:
    """Bytes in messages per step among the first workers; one that was not run sends what its stand-in sends."""
    grid = grid_of(plan.grid)
    count = min(MATRIX, plan.ledger.size)
    run = {worker.rank for worker in plan.workers}
    rows = []
    for rank in range(count):
        stand_in = plan.roles.stand_in(rank) if plan.roles else rank
        row = [0] * count
        shift = steps_between(grid, stand_in, rank)
        for entry in plan.ledger.entries[stand_in] if stand_in in run else ():
            if entry.kind == "message":
                place = [i + s for i, s in zip(grid.index_of(entry.peers[0]), shift, strict=True)]
                peer = grid.rank_at([i % n for i, n in zip(place, plan.grid, strict=True)])
                if peer < count:
                    row[peer] += entry.nbytes
        rows.append(row)
    return {"rows": rows, "left_out": plan.ledger.size - count}


def _ranking(ranking: Ranking) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for row in ranking.rows:
        spent = {
            name: getattr(row.plan and row.plan.time, name, None) for name in ("seconds", "compute", "communication")
        }
        sent = max(worker.sent for worker in row.plan.workers) if row.plan else None
        rows.append({**vars(row), **spent, "plan": None, "memory": row.memory, "sent": sent})
    return {"limit": ranking.limit, "rows": rows, "advice": ranking.advice, "left_out": ranking.left_out}


def _traced(plan: Plan, traced: Traced) -> dict[str, Any]:
    rows = [[r.layer, r.phase, *r.sent, *r.messages, *r.compute, *r.communication] for r in compare(plan, traced)]
    return {"workers": len(traced.workers), "passes": traced.passes, "rows": rows}
