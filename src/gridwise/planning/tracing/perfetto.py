"""A trace in the format of Chrome's trace viewer, which ui.perfetto.dev opens: a row per worker, an arrow per message.

Messages between two workers arrive in order, so the n-th that one sends to the other is the n-th that the other receives
from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .traced import Event, Traced

MICRO = 1e6


def perfetto(traced: Traced) -> dict[str, Any]:
    """The contents of the JSON file."""
    events = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "gridwise"}}]
    for rank, of_worker in enumerate(traced.workers):
        name = {"name": f"worker {rank}"}
        events.append({"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": name})
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        for event in of_worker:
            events.append(_slice(rank, event))
            events += _arrows(rank, event, sent, received)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slice(rank: int, event: Event) -> dict[str, Any]:
    title = f"{event.layer}: {event.what}" if event.kind == "compute" else f"{event.layer}: {event.kind}"
    return {
        "ph": "X",
        "pid": 0,
        "tid": rank,
        "name": title,
        "cat": event.kind,
        "ts": event.start * MICRO,
        "dur": event.seconds * MICRO,
        "args": {
            "phase": event.phase,
            "what": event.what,
            "bytes": event.nbytes + sum(size for _, size in event.sent),
            "peers": list(event.peers),
        },
    }


def _arrows(rank: int, event: Event, sent: Counter[int], received: Counter[int]) -> Iterator[dict[str, Any]]:
    """The ends of arrows: from the middle of the slice that sends to the end of the one that receives."""
    common = {"pid": 0, "tid": rank, "cat": "message", "name": "message"}
    for peer, _ in event.sent:
        sent[peer] += 1
        yield {**common, "ph": "s", "id": f"{rank}-{peer}-{sent[peer]}", "ts": (event.start + event.end) / 2 * MICRO}
    for peer, _ in event.received:
        received[peer] += 1
        yield {**common, "ph": "f", "bp": "e", "id": f"{peer}-{rank}-{received[peer]}", "ts": event.end * MICRO}
