"""A plan as data, per worker and per layer, and how it prints.

The table shows the least, the mean and the most over the workers, since thousands of lines help nobody: a job is as fast
as its busiest worker, and fits if the worker that needs the most memory does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ..comm.transports.counting import Entry, Ledger
from ..errors import PartitionError
from ..tables import PrintsAsTables, readable, seconds_text, spelt

if TYPE_CHECKING:
    from pathlib import Path

    from .one_step import StepRecord
    from .roles import Roles
    from .times import StepTime

Key = TypeVar("Key", bound=Hashable)
FORWARD, BACKWARD, OPTIMISER = "forward", "backward", "optimiser"
SHOWN = 12
"""How many layers the table of times shows."""


@dataclass(frozen=True)
class Worker:
    """One worker in one training step; sizes in bytes."""

    rank: int
    index: tuple[int, ...]
    parameters: int
    """Parameters and buffers."""
    gradients: int
    states: int
    """Of the optimiser."""
    activations: int
    """Kept from forward for backward, besides the model and the input; includes the output."""
    memory: int
    """The peak over the step: all of the above, and what operators need temporarily."""
    fetched: int
    """Received from other workers' blocks in forward: halos, and blocks that move."""
    sent: int
    """In total: messages, and its share of sums and copies."""
    received: int
    """In messages."""
    messages: int
    sums: int
    """How many sums and copies over several workers it takes part in."""
    control: int
    """Of the agreement in the first step, which later steps skip."""


@dataclass(frozen=True)
class LayerTraffic:
    """What a worker sends for a layer in one training step: for each number, the largest over the workers."""

    name: str
    messages: int
    forward: int
    backward: int


@dataclass(frozen=True)
class Plan(PrintsAsTables):
    """What a training step on a grid costs. Prints as three tables; `gridwise.show.planned` draws it.

    Parameters
    ----------
    model : its name
    grid, input_shape : as given to `plan`
    workers : those that were run
    layers : what each sends
    ledger : every call of every worker
    weights : how many workers each of `workers` stands for

    Examples
    --------
    >>> plan = gridwise.plan(torch.nn.Conv2d(1, 4, 3, padding=1), (1, 1, 2, 2), (1, 1, 16, 16))
    >>> len(plan.workers), plan.workers[0].messages
    (4, 3)
    """

    model: str
    grid: tuple[int, ...]
    input_shape: tuple[int, ...]
    workers: tuple[Worker, ...]
    layers: tuple[LayerTraffic, ...]
    ledger: Ledger = field(repr=False)
    """Every call of every worker."""
    weights: tuple[int, ...] = field(repr=False)
    """How many workers of the grid each of `workers` stands for."""
    roles: Roles | None = field(repr=False)
    """Which workers stand for which; None if each worker that was run stands for itself only."""
    records: tuple[StepRecord, ...] = field(repr=False)
    """What each of `workers` computes and holds."""
    time: StepTime = field(repr=False)
    """The estimated time of the step."""

    @property
    def exact(self) -> bool:
        """Whether the workers that were run do exactly what the workers they stand for do."""
        return max(self.weights) == 1 or (self.roles is not None and self.roles.exact)

    def worker(self, rank: int) -> Worker:
        """What a worker does, or the one that was run in its place."""
        stand_in = self.roles.stand_in(rank) if self.roles and 0 <= rank < self.ledger.size else rank
        for worker in self.workers:
            if worker.rank == stand_in:
                return worker
        raise PartitionError(f"plan: worker {rank} was not run, and no other stands for it.")

    def save_html(self, path: str | Path) -> None:
        """Write the plan as one self-contained HTML file (see `gridwise.planning.page`)."""
        from .page import save_page

        save_page(path, self)

    def mean(self, of: Callable[[Worker], int]) -> float:
        """The mean over the workers of the grid; an estimate where some stand for others."""
        total = sum(weight * of(worker) for weight, worker in zip(self.weights, self.workers, strict=True))
        return total / sum(self.weights)

    def balance(self, of: Callable[[Worker], int] = lambda worker: worker.sent) -> float:
        """The mean over the workers divided by the largest: 1 when all have the same to do."""
        most = max(map(of, self.workers))
        return self.mean(of) / most if most else 1.0

    def _lines(self) -> list[list[str]]:
        def line(name: str, of: Callable[[Worker], int], spelt: Callable[[int], str]) -> list[str]:
            values = [of(worker) for worker in self.workers]
            spread = (min(values), round(self.mean(of)), max(values))
            return [name, *map(spelt, spread), f"{self.balance(of):.2f}", _place(max(self.workers, key=of))]

        about = "" if self.exact else ", about"
        return [
            ["per worker", "least", f"mean{about}", "most", f"balance{about}", "most on"],
            line("parameters", lambda w: w.parameters, readable),
            line("gradients", lambda w: w.gradients, readable),
            line("optimiser states", lambda w: w.states, readable),
            line("activations", lambda w: w.activations, readable),
            line("memory at its peak", lambda w: w.memory, readable),
            line("fetched forward", lambda w: w.fetched, readable),
            line("sent per step", lambda w: w.sent, readable),
            line("received in messages", lambda w: w.received, readable),
            line("messages", lambda w: w.messages, str),
            line("sums and copies", lambda w: w.sums, str),
            line("agreement, first step", lambda w: w.control, readable),
        ]

    def _layer_lines(self) -> list[list[str]]:
        rows = [["sent at most by a worker", "messages", "forward", "backward"]]
        for row in self.layers:
            rows.append([row.name, str(row.messages), readable(row.forward), readable(row.backward)])
        return rows

    def _time_lines(self) -> list[list[str]]:
        """The layers that take longest, and the whole step."""
        rows = [["estimated time", "compute", "communication", "waiting", "in all"]]
        longest = sorted(self.time.layers, key=lambda row: -row.seconds)[:SHOWN]
        for row in (row for row in self.time.layers if row in longest):
            spent = (row.compute, row.communication, row.waiting, row.seconds)
            rows.append([f"{row.layer}, {row.phase}", *map(seconds_text, spent)])
        spent = (self.time.compute, self.time.communication, self.time.waiting, self.time.seconds)
        rows.append(["the step", *map(seconds_text, spent)])
        return rows

    def _tables(self) -> list[tuple[list[list[str]], str]]:
        machine = self.time.machine.name + ("" if self.time.machine.measured else ", which was not measured")
        return [(self._lines(), self._title()), (self._layer_lines(), ""), (self._time_lines(), f"on {machine}")]

    def _title(self) -> str:
        title = (
            f"{self.model} on a grid of {spelt(self.grid)} workers, input {spelt(self.input_shape)}: one training step"
        )
        if len(self.workers) < self.ledger.size:
            title += f" ({len(self.workers)} of {self.ledger.size} workers)"
        return title

    def __repr__(self) -> str:
        memory, sent = max(worker.memory for worker in self.workers), max(worker.sent for worker in self.workers)
        return (
            f"<Plan of {self.model} on {spelt(self.grid)} workers: "
            f"at most {readable(memory)} of memory and {readable(sent)} sent per step; print it for the tables>"
        )


def busiest(ledger: Ledger, ranks: Iterable[int], key: Callable[[Entry], Key]) -> dict[Key, tuple[int, int, int]]:
    """What is sent, by `key`: messages, bytes forward and bytes backward, for each the most of any worker."""
    sums: dict[Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    for rank in ranks:
        for entry in ledger.entries[rank]:
            if entry.kind not in ("control", "receipt"):
                of_worker = sums[key(entry)][rank]
                of_worker[0] += entry.kind == "message"
                of_worker[2 if entry.phase == BACKWARD else 1] += entry.nbytes
    columns = {name: zip(*by_worker.values(), strict=True) for name, by_worker in sums.items()}
    return {
        name: (max(messages), max(forward), max(backward)) for name, (messages, forward, backward) in columns.items()
    }


def _place(worker: Worker) -> str:
    return f"{worker.rank} at {worker.index}"
