"""A trace as data: the events of all workers, their sums per layer, and the files that they are written to."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ...errors import PartitionError
from ...tables import PrintsAsTables, readable, seconds_text
from ..report import Plan
from ..times import PHASES, LayerRow

Volumes = tuple[tuple[int, int], ...]
"""Peers, and the bytes sent to or received from each."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a worker did: an operator, or a call of the transport."""

    kind: str
    """compute, message, sum, copy or control."""
    layer: str
    phase: str
    what: str
    start: float
    """Seconds since all workers began."""
    seconds: float
    peers: tuple[int, ...] = ()
    nbytes: int = 0
    """Of a sum or a copy: this worker's share."""
    sent: Volumes = ()
    received: Volumes = ()

    def as_list(self) -> list[Any]:
        return list(astuple(self))

    @classmethod
    def of(cls, values: Sequence[Any]) -> Event:
        kind, layer, phase, what, start, seconds, peers, nbytes, sent, received = values
        pairs = [tuple((int(peer), int(size)) for peer, size in volumes) for volumes in (sent, received)]
        return cls(
            kind, layer, phase, what, float(start), float(seconds), tuple(peers), int(nbytes), pairs[0], pairs[1]
        )

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class Traced(PrintsAsTables):
    """What the workers did in the body of a `trace`. Prints as a table.

    Parameters
    ----------
    workers : the events of each worker
    passes : how often the model was run

    Examples
    --------
    >>> with gridwise.trace("out"):
    ...     _ = gridwise.distribute(model, gridwise.world().create_cartesian_topology_partition([1, 1]))(torch.ones(4, 2))
    >>> len(gridwise.planning.read_trace("out").workers)
    1
    """

    workers: tuple[tuple[Event, ...], ...]
    passes: int
    """How often the model was run."""

    def rows(self) -> list[LayerRow]:
        """One row per layer and phase, by phase and in order of appearance."""
        waits = self.waits()
        sums: dict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[0.0] * 5 for _ in self.workers])
        for rank, events in enumerate(self.workers):
            for place, event in enumerate(events):
                if event.kind == "control":
                    continue
                of_worker = sums[event.layer, event.phase][rank]
                of_worker[0 if event.kind == "compute" else 1] += event.seconds
                of_worker[2] += waits.get((rank, place), 0.0)
                of_worker[3] += event.nbytes + sum(size for _, size in event.sent)
                of_worker[4] += len(event.sent)
        n = max(1, self.passes)
        found = []
        for (layer, phase), workers in sums.items():
            compute, communication, wait, sent, messages = (max(column) / n for column in zip(*workers, strict=True))
            found.append(LayerRow(layer, phase, compute, communication, wait, round(sent), round(messages)))
        return sorted(found, key=lambda row: PHASES.get(row.phase, 2))

    def waits(self) -> dict[tuple[int, int], float]:
        """By worker and position of an event: how long the worker waited there for the last of its peers."""
        came: dict[Any, dict[int, tuple[int, Event]]] = defaultdict(dict)
        for rank, events in enumerate(self.workers):
            calls: dict[Any, int] = defaultdict(int)
            for place, event in enumerate(events):
                if event.kind == "compute":
                    continue
                team = event.peers if event.kind in ("sum", "copy", "control") else ()
                key = event.what, team, event.kind, bool(event.sent or event.received or event.kind != "message")
                calls[key] += 1
                came[(*key, calls[key])][rank] = place, event
        found = {}
        for key, by_rank in came.items():
            *name, posts, number = key
            for rank, (place, event) in by_rank.items():
                others = came[(*name, True, number)] if event.kind == "message" and not posts else by_rank
                peers = event.peers if event.kind == "message" else others
                starts = [others[peer][1].start for peer in peers if peer in others]
                late = max(starts, default=event.start) - event.start
                found[rank, place] = min(max(0.0, late), event.seconds)
        return found

    def bytes_sent(self, rank: int) -> int:
        """Bytes that a worker has sent in messages, sums and copies."""
        events = [event for event in self.workers[rank] if event.kind != "control"]
        return sum(event.nbytes + sum(size for _, size in event.sent) for event in events)

    def messages_sent(self, rank: int) -> int:
        return sum(len(event.sent) for event in self.workers[rank])

    def _tables(self) -> list[tuple[list[list[str]], str]]:
        lines = [["per pass", "compute", "communication", "of it waiting", "sent", "messages"]]
        for row in self.rows():
            spent = map(seconds_text, (row.compute, row.communication, row.waiting))
            lines.append([f"{row.layer}, {row.phase}", *spent, readable(row.sent), str(row.messages)])
        return [(lines, f"{len(self.workers)} workers, {self.passes} passes; the most of any worker")]

    def save(self, folder: str | Path, plan: Plan | None = None) -> None:
        """Write the table, the file for Perfetto, the events, and the page if there is a plan."""
        from ..page import save_page
        from .perfetto import perfetto

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trace.txt").write_text(f"{self}\n", encoding="utf-8")
        (folder / "trace.json").write_text(json.dumps(perfetto(self)), encoding="utf-8")
        events = {"passes": self.passes, "workers": [[event.as_list() for event in each] for each in self.workers]}
        (folder / "events.json").write_text(json.dumps(events), encoding="utf-8")
        if plan is not None:
            save_page(folder / "trace.html", plan, self)


def read_trace(folder: str | Path) -> Traced:
    """The trace that was written to a folder.

    Parameters
    ----------
    folder : as given to `gridwise.trace`

    Examples
    --------
    >>> with gridwise.trace("out"):
    ...     _ = gridwise.distribute(model, gridwise.world().create_cartesian_topology_partition([1, 1]))(torch.ones(4, 2))
    >>> gridwise.planning.read_trace("out").passes
    1
    """
    path = Path(folder) / "events.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Traced(tuple(tuple(map(Event.of, each)) for each in found["workers"]), int(found["passes"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PartitionError(f"the trace in {path} cannot be read: {type(error).__name__}: {error}.") from error
