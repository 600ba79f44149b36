"""What a plan says: per worker and per layer, as data; and how it prints.

The table is that of the busiest and the idlest worker, since thousands of lines help nobody: a job is as fast as its
busiest worker, and as large as the one that needs most.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..comm.transports.counting import Entry, Ledger
from ..html import table

FORWARD, BACKWARD = "forward", "backward"
ADJOINT, GRADIENT = "the adjoint of ", "the gradient of "
"""How the names of what is sent in backward begin, mostly."""


@dataclass(frozen=True)
class Worker:
    """One worker in one training step; sizes in bytes."""

    rank: int
    index: tuple[int, ...]
    parameters: int
    """Parameters and buffers."""
    gradients: int
    activations: int
    """What autograd keeps for backward, apart from the model and the input."""
    fetched: int
    """What it gets of other workers' blocks on the way forward: halos, and blocks that move."""
    sent: int
    """In all: messages, and its share of sums and copies."""
    received: int
    """In messages."""
    messages: int
    sums: int
    """How many sums and copies over several workers it takes part in."""
    control: int
    """Of the agreement in the first step, which later ones leave out."""

    @property
    def memory(self) -> int:
        return self.parameters + self.gradients + self.activations

    @classmethod
    def of(
        cls,
        rank: int,
        index: tuple[int, ...],
        entries: Sequence[Entry],
        parameters: int,
        gradients: int,
        activations: int,
    ) -> Worker:
        moved = [entry for entry in entries if entry.kind != "control"]
        return cls(
            rank,
            index,
            parameters,
            gradients,
            activations,
            fetched=sum(entry.received for entry in moved if entry.phase == FORWARD),
            sent=sum(entry.nbytes for entry in moved),
            received=sum(entry.received for entry in moved),
            messages=sum(entry.kind == "message" for entry in moved),
            sums=sum(entry.kind in ("sum", "copy") for entry in moved),
            control=sum(entry.nbytes for entry in entries if entry.kind == "control"),
        )


@dataclass(frozen=True)
class LayerTraffic:
    """What a worker sends for a layer in one training step: the largest of all workers, each for itself."""

    name: str
    messages: int
    forward: int
    backward: int


@dataclass(frozen=True)
class Plan:
    """A training step on a grid, counted. Prints as two tables; `gridwise.show.planned` draws it.

    Parameters
    ----------
    model : its name
    grid, input_shape : what was asked
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

    def mean(self, of: Callable[[Worker], int]) -> float:
        """Over the workers of the grid; an estimate where some stand for others."""
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

        about = ", about" if max(self.weights) > 1 else ""  # those that a worker stands for may differ from it a little
        return [
            ["per worker", "least", f"mean{about}", "most", f"balance{about}", "most on"],
            line("parameters", lambda w: w.parameters, readable),
            line("gradients", lambda w: w.gradients, readable),
            line("activations", lambda w: w.activations, readable),
            line("memory", lambda w: w.memory, readable),
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

    def __rich__(self) -> Any:
        from rich.console import Group

        return Group(_table(self._lines(), self._title()), _table(self._layer_lines(), ""))

    def _title(self) -> str:
        sizes = [" x ".join(map(str, shape)) for shape in (self.grid, self.input_shape)]
        title = f"{self.model} on a grid of {sizes[0]} workers, input {sizes[1]}: one training step"
        if len(self.workers) < self.ledger.size:
            title += f" ({len(self.workers)} of {self.ledger.size} workers)"
        return title

    def __repr__(self) -> str:
        memory, sent = (max(map(of, self.workers)) for of in (lambda worker: worker.memory, lambda worker: worker.sent))
        return (
            f"<Plan of {self.model} on {' x '.join(map(str, self.grid))} workers: "
            f"at most {readable(memory)} of memory and {readable(sent)} sent per step; print it for the tables>"
        )

    def _repr_html_(self) -> str:
        return table(self._lines(), self._title()) + table(self._layer_lines())

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=110, force_jupyter=False).print(self)
        return text.getvalue().rstrip()


def layers_of(ledger: Ledger, ranks: Iterable[int]) -> tuple[LayerTraffic, ...]:
    """What each layer sends, in the order in which they first do."""
    sums: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    for rank in ranks:
        for entry in ledger.entries[rank]:
            if entry.kind not in ("control", "receipt"):
                of_worker = sums[_layer(entry.what)][rank]
                of_worker[0] += entry.kind == "message"
                of_worker[2 if entry.phase == BACKWARD else 1] += entry.nbytes
    return tuple(
        LayerTraffic(name, *(max(counts[i] for counts in by_worker.values()) for i in range(3)))
        for name, by_worker in sums.items()
    )


def _layer(what: str) -> str:
    """Where something is sent, in short: the module in which an operator is called, or else the operator."""
    if what.startswith(GRADIENT):
        return f"gradients: {what.removeprefix(GRADIENT).partition(', of the distributed ')[0].rstrip(',')}"
    plain = what.removeprefix(ADJOINT)
    operator = OPERATOR.match(plain)
    return operator["module"] or operator["name"] if operator else plain


OPERATOR = re.compile(r"(?P<name>[\w.]+?)(\.\w+)?( in (?P<module>[\w.]+))?, [^:]+:\d+, in ")
"""How an operator of a recorded model is named: "conv2d in layer1.0, model.py:12, in forward:  ..."."""


def _place(worker: Worker) -> str:
    return f"{worker.rank} at {worker.index}"


def _table(lines: Sequence[Sequence[str]], title: str) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for at, name in enumerate(lines[0]):
        table.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    for cells in lines[1:]:
        table.add_row(*map(escape, cells))
    return table


def readable(size: int) -> str:
    """A number of bytes in the unit that suits it.

    Parameters
    ----------
    size : a number of bytes

    Examples
    --------
    >>> gridwise.planning.readable(3 * 2**20)
    '3.0 MiB'
    """
    factor, unit = unit_for(size)
    return f"{size:,} B" if factor == 1 else f"{size / factor:,.1f} {unit}"


def unit_for(size: int) -> tuple[int, str]:
    """The unit in which a number of bytes is read best, and its size."""
    place = min(max(0, size.bit_length() - 1) // 10, 4)
    return 1024**place, ("B", "KiB", "MiB", "GiB", "TiB")[place]
