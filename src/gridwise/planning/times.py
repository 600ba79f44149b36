"""How long a step takes on a given machine, layer by layer, from what its operators do and what its workers send.

    compute          the larger of operations / speed and bytes / bandwidth for convolutions and matrix products,
                     bytes / bandwidth for everything else, and an overhead per call. Convolutions are slower where
                     rows are short, where channels do not fill the processor's vectors, and where torch unrolls windows
    communication    an overhead per exchange, a latency and the bytes per message; a sum goes through a tree
    waiting          a layer ends for everybody when the slowest worker has computed and the busiest has communicated: halos
                     and sums couple neighbours at every layer, so no worker gets far ahead

The estimate of a step is the sum of compute and communication over the layers, of which waiting is a part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..comm.transports.counting import Entry, Ledger
from ..costs.machine import Machine
from .layer_names import layer_of
from .memory import LayerPhase
from .one_step import StepRecord
from .recorder import Work
from .report import BACKWARD, FORWARD, busiest

AGREEMENT = "agreement"
PHASES = {FORWARD: 0, BACKWARD: 1}


@dataclass(frozen=True)
class LayerRow:
    """A layer in one phase, planned or traced: for each number, the largest over the workers."""

    layer: str
    phase: str
    compute: float = 0.0
    """Seconds, as are the next two."""
    communication: float = 0.0
    waiting: float = 0.0
    """Waiting for busier workers: planned, that of the average worker; traced, a part of the communication."""
    sent: int = 0
    messages: int = 0

    @property
    def seconds(self) -> float:
        return self.compute + self.communication


@dataclass(frozen=True)
class StepTime:
    """The estimated time of a step."""

    machine: Machine
    layers: tuple[LayerRow, ...]

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


def step_time(records: Sequence[StepRecord], weights: Sequence[int], ledger: Ledger, machine: Machine) -> StepTime:
    """The estimate, from what one worker of each role does and sends; `weights` says how many workers have the role."""
    spent: dict[LayerPhase, list[tuple[int, float, float]]] = defaultdict(list)
    for record, weight in zip(records, weights, strict=True):
        sending = _communication(record.worker.rank, ledger.entries[record.worker.rank], machine)
        for place in dict.fromkeys([*record.work, *sending]):
            compute = compute_seconds(record.work[place], machine) if place in record.work else 0.0
            seconds = sending.get(place, 0.0)
            spent[place].append((weight, compute, max(0.0, seconds - machine.overlap * min(seconds, compute))))
    ranks = [record.worker.rank for record in records]
    volumes = busiest(ledger, ranks, lambda entry: (layer_of(entry.what), entry.phase))
    layers = []
    for place, roles in spent.items():
        compute, communication = max(c for _, c, _ in roles), max(t for _, _, t in roles)
        mean = sum(weight * (c + t) for weight, c, t in roles) / sum(weights)
        messages, *sent = volumes.get(place, (0, 0, 0))
        layers.append(LayerRow(*place, compute, communication, compute + communication - mean, sum(sent), messages))
    if ledger.size > 1:  # one all-reduce of a few numbers in forward, and one in backward
        agreed = machine.collective_seconds(range(ledger.size), 40)
        layers += [LayerRow(AGREEMENT, phase, communication=agreed) for phase in (FORWARD, BACKWARD)]
    order = {place: i for i, place in enumerate(spent)}
    layers.sort(key=lambda row: (PHASES.get(row.phase, 2), order.get((row.layer, row.phase), -1)))
    return StepTime(machine, tuple(layers))


def compute_seconds(work: Work, machine: Machine) -> float:
    """Seconds that the operators of a layer take, one after the other."""
    operations = sum(count / machine.rate(kind, dtype) for (kind, dtype), count in work.effort.items())
    operations += machine.row_columns * sum(
        count / machine.rate(kind, dtype) for (kind, dtype), count in work.per_column.items()
    )
    operations += machine.unroll_seconds * work.unrolled
    products = max(operations, work.product_bytes / machine.memory_bandwidth)
    return products + work.bytes / machine.memory_bandwidth + work.calls * machine.call_overhead


def _communication(rank: int, entries: Sequence[Entry], machine: Machine) -> dict[LayerPhase, float]:
    """Seconds by layer and phase; the messages of an exchange are sent and received at the same time."""
    out: dict[LayerPhase, float] = defaultdict(float)
    into: dict[LayerPhase, float] = defaultdict(float)
    sums: dict[LayerPhase, float] = defaultdict(float)
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
