"""A transport that counts and moves nothing: any number of simulated workers in one process.

    ledger = Ledger(4096)
    P = gridwise.world(ledger.worker(17))       # the world, as worker 17 would see it
    ledger.declare(layout)                      # what real workers would agree on by communicating
    layer(x)                                    # the same code as ever; x may be a meta tensor
    ledger.bytes_sent(17)

Each simulated worker runs the real code of its layers. What it would send is entered in the ledger; the tensors that it
would receive into stay as they are. Two questions still need an answer:

    all workers' blocks of a tensor     from declared layouts, or the answer that earlier workers were given
    what only some workers hold,        from earlier workers, whose votes the ledger keeps: run the workers that hold it
    such as the source of a broadcast   first

`gridwise.plan` does all of this for a whole model.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import PartitionError
from ...grid import Grid, Layout
from ..messages.requests import NOTHING, Request
from ..node import FEW
from .base import PeerTensor, Team, Transport

ABSTAINS = np.iinfo(np.int64).min
"""What a worker writes into a vote where it has no say: the least number, since the maximum is taken."""


@dataclass(frozen=True)
class Entry:
    """One call that a worker would have made: its name, kind and peers, and the bytes that the worker sends and receives."""

    what: str
    kind: str
    peers: Team
    nbytes: int
    received: int = 0
    """Bytes received, for messages only: over all workers, sums and copies receive as much as they send."""
    phase: str = ""
    """The ledger's phase at the time of the call."""


@dataclass
class Ledger:
    """The calls that the simulated workers of a world of `size` would have made."""

    size: int
    entries: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    layouts: list[Layout] = field(default_factory=list)
    expected: tuple[int, ...] | None = None
    """The global shape of the next tensor asked for, in balanced blocks; takes precedence over declared layouts."""
    following: list[tuple[int, ...]] = field(default_factory=list)
    """The shapes asked for after it, one by one; the last one stays. `expect` sets all of them."""
    phase: str = ""
    """Copied into every entry; set by the code that runs the workers, for example to "backward"."""
    answers: dict[Any, Any] = field(default_factory=dict)
    """The layouts and votes that answered each call so far."""
    workers_per_node: int = 1
    """The number of workers with consecutive ranks that share a machine, and take sums through its memory."""

    def worker(self, rank: int) -> CountingTransport:
        """The transport of simulated worker `rank`."""
        if not 0 <= rank < self.size:
            raise PartitionError(f"`rank` (={rank}) is no worker of a world of {self.size}.")
        return CountingTransport(self, rank)

    def declare(self, *layouts: Layout) -> None:
        """Declare how tensors are cut: the answer when a layer asks for all workers' blocks."""
        self.layouts = [*layouts, *self.layouts]

    def expect(self, *shapes: tuple[int, ...]) -> None:
        """Set the global shapes, in balanced blocks, of the next tensors asked for, in order.

        Without any, declared layouts answer.
        """
        self.expected, self.following = shapes[0] if shapes else None, list(shapes[1:])

    def bytes_sent(self, rank: int, kind: str | None = None) -> int:
        """The bytes that a worker would have sent, in total or of one kind (message, sum, copy, control)."""
        return sum(entry.nbytes for entry in self.entries[rank] if kind in (None, entry.kind))

    def bytes_received(self, rank: int) -> int:
        """The bytes of point-to-point messages that a worker would have received."""
        return sum(entry.received for entry in self.entries[rank])

    def messages_sent(self, rank: int) -> int:
        """The number of point-to-point messages that a worker would have sent."""
        return sum(entry.kind == "message" for entry in self.entries[rank])


class _UnderWay:
    """A pending sum on one machine, which holds buffers for the others' chunks until waited for (`messages.chunked_sum`)."""

    def __init__(self, x: Tensor, workers: int) -> None:
        self._room: Tensor | None = x.new_empty((workers - 1, -(-x.numel() // workers)))

    def wait(self) -> None:
        self._room = None


class CountingTransport(Transport):
    """One simulated worker of a `Ledger`."""

    name = "counting"
    carries_cuda = True
    carries_meta = True
    survives_forks = True

    def __init__(self, ledger: Ledger, rank: int) -> None:
        super().__init__(rank, ledger.size)
        self.ledger = ledger
        self._questions: Counter[Any] = Counter()

    # Answers

    def declared_layout(
        self, grid: Grid, block: tuple[int, ...], whole: Sequence[int], what: str, team: Team
    ) -> Layout:
        question = self._question("layout", what, team)
        found = [layout for layout in self._candidates(question, grid) if self._fits(layout, block, whole)]
        if not found:
            raise PartitionError(
                f"nobody has declared a layout on the grid {grid.shape} in which worker {self.rank} has a block of shape "
                f"{block}.\n  fix: ledger.declare(Layout.balanced(P_x.geometry, global_shape)) before the call."
            )
        if len(found) > 1:
            shapes = [f"a tensor of shape {layout.global_shape}, cut at {layout.cuts}" for layout in found]
            holds = f"a block of shape {block}" if self.rank in grid else "no block"
            asked = f"{what}: several layouts were declared in which worker {self.rank} has {holds}."
            raise PartitionError(asked, shapes, "let another worker, for which only one fits, run first.")
        return self.ledger.answers.setdefault(question, found[0])

    def _candidates(self, question: Any, grid: Grid) -> list[Layout]:
        known, shape = self.ledger.answers.get(question), self.ledger.expected
        if self.ledger.following:
            self.ledger.expected = self.ledger.following.pop(0)
        if known is not None:
            return [known]
        if shape is not None and len(shape) == grid.dim:
            return [Layout.balanced(grid, shape)]
        return [layout for layout in dict.fromkeys(self.ledger.layouts) if layout.grid == grid]

    def _fits(self, layout: Layout, block: tuple[int, ...], whole: Sequence[int]) -> bool:
        if self.rank not in layout.grid:
            return True
        own = layout.block(self.rank).shape
        return block == tuple(layout.global_shape[d] if d in whole else extent for d, extent in enumerate(own))

    def _question(self, kind: str, what: str, team: Team) -> Any:
        """A key that identifies a call, alike on all workers, since they make the same calls in the same order."""
        key = (kind, what, team)
        self._questions[key] += 1
        return (*key, self._questions[key])

    # Counting

    def _note(self, kind: str, peers: Team, nbytes: int, received: int = 0) -> None:
        entry = Entry(self._what or kind, kind, peers, nbytes, received, self.ledger.phase)
        self.ledger.entries[self.rank].append(entry)

    @property
    def _what(self) -> str:
        return self.waiting.what if self.waiting else ""

    def _post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request:
        for peer, x in sends:
            self._note("message", (peer,), x.nbytes)
        for peer, x in receives:
            self._note("receipt", (peer,), 0, x.nbytes)
        return NOTHING

    def _all_sum(self, x: Tensor, team: Team) -> None:
        self._note("sum", team, 2 * x.nbytes * (len(team) - 1) // len(team))

    def _post_sum(self, x: Tensor, team: Team) -> Request:
        self._all_sum(x, team)
        nodes = {rank // self.ledger.workers_per_node for rank in team}
        return _UnderWay(x, len(team)) if len(nodes) == 1 and x.nbytes > FEW else NOTHING

    def _post_narrow_sum(self, x: Tensor, team: Team, wire: torch.dtype) -> Request:
        self._note("sum", team, 2 * x.numel() * wire.itemsize * (len(team) - 1) // len(team))
        return NOTHING

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        self._note("sum", team, 0 if self.rank == root else x.nbytes)

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        self._note("copy", team, x.nbytes * (len(team) - 1) if self.rank == root else 0)

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        self._note("control", team, values.nbytes)
        if (values == ABSTAINS).any():  # a vote in which some workers abstain
            question = self._question("votes", self._what, team)
            before = self.ledger.answers.get(question, values)
            if before.shape == values.shape:
                np.maximum(values, before, out=values)
            self.ledger.answers[question] = values.copy()

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        self._note("control", team, len(data))
        return [data] * len(team)  # as if all workers had passed the same

    def abort(self, code: int = 1) -> None:
        os._exit(code)
