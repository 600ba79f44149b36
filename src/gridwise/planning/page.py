"""A plan, a ranking of grids and a trace as one HTML file that needs nothing else: no network, no library.

The numbers are put into the page as JSON, and its script (`page.html`) draws them. Names come from models, so from anywhere:
none of them is ever read as HTML. In the JSON no character is left that could end its element, and the script only ever sets
text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from ..comm.transports.counting import Entry
from ..grid import Grid, Layout
from .comparison import compare
from .layer_names import layer_of
from .report import Plan
from .search import Ranking
from .traced import Traced

TEMPLATE = Path(__file__).parent / "page.html"
MATRIX = 64
"""Workers up to which there is a matrix of who sends to whom; of more, the first."""
DRAWN = 64
"""Blocks along a dim that are drawn."""


def save_page(path: str | Path, what: Plan | Ranking, traced: Traced | None = None) -> None:
    """Write the page of a plan, or of a ranking and its best plan; with what was measured beside it if there is a trace."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(page(what, traced), encoding="utf-8")


def page(what: Plan | Ranking, traced: Traced | None = None) -> str:
    """The text of the file."""
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
    return TEMPLATE.read_text(encoding="utf-8").replace("{{data}}", as_script(data))


def as_script(data: Any) -> str:
    """JSON that can stand in a script element, whatever is in it."""
    text = json.dumps(data, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _first(ranking: Ranking) -> Plan:
    plan = ranking.rows[0].plan
    assert plan is not None  # `search` raises where no grid can be run
    return plan


def _summary(plan: Plan) -> dict[str, Any]:
    machine, names = (
        plan.time.machine,
        ("parameters", "gradients", "states", "activations", "memory", "sent", "messages"),
    )
    return {
        "model": plan.model,
        "grid": plan.grid,
        "input": plan.input_shape,
        "size": plan.ledger.size,
        "exact": plan.exact,
        "kinds": plan.roles.kinds if plan.roles else None,
        "machine": {"name": machine.name, "source": machine.source, "measured": machine.measured},
        "seconds": {name: getattr(plan.time, name) for name in ("seconds", "compute", "communication", "waiting")},
        "workers": [
            {"rank": worker.rank, "index": worker.index, "stands_for": weight, **{n: getattr(worker, n) for n in names}}
            for worker, weight in zip(plan.workers, plan.weights, strict=True)
        ],
    }


def _layers(plan: Plan) -> list[dict[str, Any]]:
    """Each layer: time by phase, what the busiest worker sends, how its output is cut, what it holds at the peak."""
    times = {(row.layer, row.phase): row for row in plan.time.layers}
    busiest = max(plan.workers, key=lambda worker: worker.memory)
    record = plan.records[plan.workers.index(busiest)]
    held: dict[str, int] = defaultdict(int)
    for holder in record.holders:
        held[holder.layer] += holder.bytes
    talker = max(plan.workers, key=lambda worker: worker.messages)
    grid = Grid(tuple(range(plan.ledger.size)), plan.grid)
    names = dict.fromkeys([*record.names, *(row.layer for row in plan.time.layers), *(row.name for row in plan.layers)])
    flops: dict[str, int] = defaultdict(int)
    for (layer, _), work in record.work.items():
        flops[layer] += sum(work.flops.values())
    found = []
    for name in names:
        phases = {
            phase: {"compute": row.compute, "communication": row.communication, "waiting": row.waiting}
            for (layer, phase), row in times.items()
            if layer == name
        }
        entries = [entry for entry in plan.ledger.entries[talker.rank] if layer_of(entry.what) == name]
        layout = record.layouts.get(name)
        found.append(
            {
                "name": name,
                "phases": phases,
                "held": held.get(name, 0),
                "flops": flops.get(name, 0),
                "of": talker.rank,
                "sent": _sent(entries, grid, talker.rank),
                "shape": layout.global_shape if layout else None,
                "grid": layout.grid.shape if layout else None,
                "cuts": _drawn_cuts(layout) if layout else None,
                "halo": _halo(plan, name),
            }
        )
    return found


def _drawn_cuts(layout: Layout) -> list[list[int]]:
    return [list(cuts[: DRAWN + 1]) for cuts in layout.cuts]


def _halo(plan: Plan, name: str) -> dict[str, Any] | None:
    """How the input of a layer is cut, and how many rows each worker that was run fetches before and after its block."""
    found = {record.worker.rank: record.halos[name] for record in plan.records if name in record.halos}
    layouts = {halo.layout for halo in found.values()}
    if len(layouts) != 1:
        return None  # nothing is fetched
    (layout,) = layouts
    if layout.grid.ranks != tuple(range(plan.ledger.size)):
        return None  # the page finds a worker by its place
    return {
        "shape": layout.global_shape,
        "grid": layout.grid.shape,
        "cuts": _drawn_cuts(layout),
        "widths": {rank: halo.widths for rank, halo in found.items()},
    }


def _sent(entries: list[Entry], grid: Grid, rank: int) -> list[dict[str, Any]]:
    """What a worker sends for a layer, by where it goes."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    own = grid.index_of(rank)
    for entry in entries:
        if entry.kind in ("control", "receipt"):
            continue
        if entry.kind == "message":
            away = tuple(there - here for there, here in zip(grid.index_of(entry.peers[0]), own, strict=True))
            where = "to " + ", ".join(f"{step:+d}" if step else "0" for step in away)
        else:
            where = f"{entry.kind} over {len(entry.peers)} workers"
        both = sums[where, entry.phase]
        both[0] += entry.nbytes
        both[1] += 1
    return [{"where": w, "phase": phase, "bytes": b, "count": n} for (w, phase), (b, n) in sums.items()]


def _curve(plan: Plan) -> dict[str, Any]:
    busiest = max(plan.workers, key=lambda worker: worker.memory)
    record = plan.records[plan.workers.index(busiest)]
    before = busiest.memory - max((moment.peak for moment in record.curve), default=0)
    return {
        "rank": busiest.rank,
        "before": before,
        "moments": [[m.layer, m.phase, before + m.peak, before + m.after] for m in record.curve],
        "holders": [[holder.layer, holder.phase, holder.bytes] for holder in record.holders[:20]],
    }


def _matrix(plan: Plan) -> dict[str, Any]:
    """Bytes in messages per step among the first workers; those that were not run do as those that stand for them."""
    grid = Grid(tuple(range(plan.ledger.size)), plan.grid)
    count = min(MATRIX, plan.ledger.size)
    run = {worker.rank for worker in plan.workers}
    rows = []
    for rank in range(count):
        stand_in = plan.roles.stand_in(rank) if plan.roles else rank
        row = [0] * count
        shift = [a - b for a, b in zip(grid.index_of(rank), grid.index_of(stand_in), strict=True)]
        for entry in plan.ledger.entries[stand_in] if stand_in in run else ():
            if entry.kind == "message":
                place = [i + s for i, s in zip(grid.index_of(entry.peers[0]), shift, strict=True)]
                peer = grid.rank_at([i % n for i, n in zip(place, plan.grid, strict=True)])
                if peer < count:
                    row[peer] += entry.nbytes
        rows.append(row)
    return {"rows": rows, "left_out": plan.ledger.size - count}


def _ranking(ranking: Ranking) -> dict[str, Any]:
    rows = []
    for row in ranking.rows:
        time = row.plan.time if row.plan else None
        rows.append(
            {
                "grid": row.grid,
                "fits": row.fits,
                "problem": row.problem,
                "memory": row.memory,
                "seconds": time.seconds if time else None,
                "compute": time.compute if time else None,
                "communication": time.communication if time else None,
                "sent": max(worker.sent for worker in row.plan.workers) if row.plan else None,
            }
        )
    return {"limit": ranking.limit, "rows": rows, "advice": ranking.advice, "left_out": ranking.left_out}


def _traced(plan: Plan, traced: Traced) -> dict[str, Any]:
    rows = [[r.layer, r.phase, *r.sent, *r.messages, *r.compute, *r.communication] for r in compare(plan, traced)]
    return {"workers": len(traced.workers), "passes": traced.passes, "rows": rows}
