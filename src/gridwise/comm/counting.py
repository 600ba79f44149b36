"""A transport that counts and moves nothing: any number of pretended workers in one process.

    ledger = Ledger(4096)
    P = gridwise.world(ledger.worker(17))       # the world, as worker 17 would see it
    ledger.declare(layout)                      # what a real world would agree on by talking
    layer(x)                                    # the same code as ever; x may be a meta tensor
    ledger.bytes_sent(17)

Each pretended worker runs the real code of its layers. What it would send is written into the ledger, what it would
receive stays as it is. The one thing that workers ask each other, the blocks of an input, is answered from declared
layouts.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ..errors import PartitionError
from ..grid import Grid, Layout
from .transport import Parcel, Pending, Team, Transport


@dataclass(frozen=True)
class Entry:
    """One call that a worker would have made: its name, its kind, with whom, and how many bytes leave the worker."""

    what: str
    kind: str
    peers: Team
    nbytes: int


@dataclass
class Ledger:
    """What the pretended workers of a world of `size` would have done."""

    size: int
    entries: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    layouts: list[Layout] = field(default_factory=list)

    def worker(self, rank: int) -> CountingTransport:
        """The transport of pretended worker `rank`."""
        if not 0 <= rank < self.size:
            raise PartitionError(f"`rank` (={rank}) is no worker of a world of {self.size}.")
        return CountingTransport(self, rank)

    def declare(self, *layouts: Layout) -> None:
        """Say how tensors are cut: the answer when a layer wants to know everybody's blocks."""
        self.layouts = [*layouts, *self.layouts]

    def bytes_sent(self, rank: int, kind: str | None = None) -> int:
        """How many bytes a worker would have sent, in all or of one kind (message, sum, copy, control)."""
        return sum(entry.nbytes for entry in self.entries[rank] if kind in (None, entry.kind))

    def messages_sent(self, rank: int) -> int:
        """How many point-to-point messages a worker would have sent."""
        return sum(entry.kind == "message" for entry in self.entries[rank])


class _Sent:
    def wait(self) -> None:
        return None


class CountingTransport(Transport):
    """One pretended worker of a `Ledger`."""

    name = "counting"
    carries_cuda = True

    def __init__(self, ledger: Ledger, rank: int) -> None:
        super().__init__(rank, ledger.size)
        self.ledger = ledger

    def declared_layout(self, grid: Grid, block: tuple[int, ...], whole: Sequence[int]) -> Layout:
        for layout in self.ledger.layouts:
            if layout.grid == grid and (self.rank not in grid or block == self._block(layout, whole)):
                return layout
        raise PartitionError(
            f"nobody has declared a layout on the grid {grid.shape} in which worker {self.rank} has a block of shape {block}."
            "\n  fix: ledger.declare(Layout.balanced(P_x.grid, global_shape)) before the call."
        )

    def _block(self, layout: Layout, whole: Sequence[int]) -> tuple[int, ...]:
        own = layout.block(self.rank).shape
        return tuple(layout.global_shape[d] if d in whole else extent for d, extent in enumerate(own))

    def _note(self, kind: str, peers: Team, nbytes: int) -> None:
        what = self.waiting.what if self.waiting else kind
        self.ledger.entries[self.rank].append(Entry(what, kind, peers, nbytes))

    def _post(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Pending:
        for peer, x in sends:
            self._note("message", (peer,), x.nbytes)
        return _Sent()

    def _all_sum(self, x: Tensor, team: Team) -> None:
        self._note("sum", team, 2 * x.nbytes * (len(team) - 1) // len(team))

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        self._note("sum", team, 0 if self.rank == root else x.nbytes)

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        self._note("copy", team, x.nbytes * (len(team) - 1) if self.rank == root else 0)

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        self._note("control", team, values.nbytes)

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        self._note("control", team, len(data))
        return [data] * len(team)  # the others would say the same

    def abort(self, code: int = 1) -> None:
        os._exit(code)
