"""How long a step takes, layer by layer, from what its operators do and what its workers send, on a given machine.

    compute          the larger of operations / speed and bytes / bandwidth for convolutions and products,
                     bytes / bandwidth for everything else, and a little for every call. Convolutions are slower where
                     rows are short, where channels do not fill the vectors of a processor, and where torch unrolls windows
    communication    for each exchange a little, for each of its messages a latency and its bytes; a sum goes through a tree
    waiting          a layer ends for everybody when the slowest worker has computed and the busiest has talked: halos and
                     sums tie neighbours together at every layer, so nobody is far ahead

The estimate of a step is the sum of these over the layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..comm.transports.counting import Entry
from .layer_names import layer_of
from .machine import Machine
from .one_step import StepRecord
from .recorder import Work
from .report import BACKWARD, FORWARD

AGREEMENT = "agreement"
PHASES = {FORWARD: 0, BACKWARD: 1}


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer in one phase, of the worker that computes longest and of the one that talks longest."""

    layer: str
    phase: str
    compute: float
    communication: float
    waiting: float
    """Of the average worker: for those who have more to do."""

    @property
    def seconds(self) -> float:
        return self.compute + self.communication


@dataclass(frozen=True)
class StepTime:
    """The estimate of a step."""

    machine: Machine
    layers: tuple[LayerTime, ...]

    @property
    def seconds(self) -> float:
        return sum(layer.seconds for layer in self.layers)

    @property
    def compute(self) -> float:
        return sum(layer.compute for layer in self.layers)

    @property
    def communication(self) -> float:
        return sum(layer.communication for layer in self.layers)

    @property
    def waiting(self) -> float:
        return sum(layer.waiting for layer in self.layers)


def step_time(
    records: Sequence[StepRecord], entries: Sequence[Sequence[Entry]], size: int, machine: Machine
) -> StepTime:
    """The estimate from what some workers do, one of each role, and what they send, in the same order."""
    spent: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for record, sent in zip(records, entries, strict=True):
        talked = _communication(record.worker.rank, sent, machine)
        for place in dict.fromkeys([*record.work, *talked]):
            compute = compute_seconds(record.work[place], machine) if place in record.work else 0.0
            seconds = talked.get(place, 0.0)
            spent[place].append((compute, max(0.0, seconds - machine.overlap * min(seconds, compute))))
    layers = []
    for (layer, phase), pairs in spent.items():
        compute, talk = max(c for c, _ in pairs), max(t for _, t in pairs)
        mean = sum(c + t for c, t in pairs) / len(records)
        layers.append(LayerTime(layer, phase, compute, talk, compute + talk - mean))
    if size > 1:  # one all-reduce of a few numbers in forward, and one in backward
        agreed = machine.collective_seconds(range(size), 40)
        layers += [LayerTime(AGREEMENT, phase, 0.0, agreed, 0.0) for phase in (FORWARD, BACKWARD)]
    order = {place: i for i, place in enumerate(spent)}
    layers.sort(key=lambda row: (PHASES.get(row.phase, 2), order.get((row.layer, row.phase), -1)))
    return StepTime(machine, tuple(layers))


def compute_seconds(work: Work, machine: Machine) -> float:
    """Of the operators of a layer, one after the other."""
    operations = sum(count / machine.rate(kind, dtype) for (kind, dtype), count in work.effort.items())
    operations += machine.row_columns * sum(
        count / machine.rate(kind, dtype) for (kind, dtype), count in work.per_column.items()
    )
    operations += machine.unroll_seconds * work.unrolled
    products = max(operations, work.product_bytes / machine.memory_bandwidth)
    return products + work.bytes / machine.memory_bandwidth + work.calls * machine.call_overhead


def _communication(rank: int, entries: Sequence[Entry], machine: Machine) -> dict[tuple[str, str], float]:
    """By layer and phase; messages of one exchange go out and come in at the same time."""
    out: dict[tuple[str, str], float] = defaultdict(float)
    into: dict[tuple[str, str], float] = defaultdict(float)
    sums: dict[tuple[str, str], float] = defaultdict(float)
    before: Entry | None = None
    for entry in entries:
        place = layer_of(entry.what), entry.phase
        if entry.kind in ("message", "receipt") and _begins(entry, before):
            sums[place] += machine.link((rank, entry.peers[0])).exchange
        before = entry
        if entry.kind == "message":
            out[place] += machine.message_seconds(rank, entry.peers[0], entry.nbytes)
        elif entry.kind == "receipt":
            into[place] += machine.message_seconds(rank, entry.peers[0], entry.received)
        elif entry.kind in ("sum", "copy"):
            sums[place] += machine.collective_seconds(entry.peers, entry.nbytes)
    return {place: max(out[place], into[place]) + sums[place] for place in {**out, **into, **sums}}


def _begins(entry: Entry, before: Entry | None) -> bool:
    """Whether a message or a receipt is the first of its exchange: messages are noted before receipts."""
    if before is None or before.kind not in ("message", "receipt") or before.what != entry.what:
        return True
    return entry.kind == "message" and before.kind == "receipt"
