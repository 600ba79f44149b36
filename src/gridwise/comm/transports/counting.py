"""A transport that counts and moves nothing: any number of pretended workers in one process.

    ledger = Ledger(4096)
    P = gridwise.world(ledger.worker(17))       # the world, as worker 17 would see it
    ledger.declare(layout)                      # what a real world would agree on by talking
    layer(x)                                    # the same code as ever; x may be a meta tensor
    ledger.bytes_sent(17)

Each pretended worker runs the real code of its layers. What it would send is written into the ledger, what it would
receive stays as it is. Two questions need an answer all the same:

    everybody's blocks of a tensor      from declared layouts, or as the workers before this one were answered
    what only some workers hold,        from the workers before this one, whose votes the ledger keeps: let those that
    such as the source of a broadcast   hold it run first

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
from .base import Parcel, Team, Transport

ABSTAINS = np.iinfo(np.int64).min
"""What a worker writes where it has nothing to say: the least of all numbers, and the maximum is taken."""


@dataclass(frozen=True)
class Entry:
    """One call that a worker would have made: its name, its kind, with whom, and how many bytes leave and reach it."""

    what: str
    kind: str
    peers: Team
    nbytes: int
    received: int = 0
    """Of messages only: what sums and copies bring is as much as they send, taken over all workers."""
    phase: str = ""
    """That of the ledger at this moment."""


@dataclass
class Ledger:
    """What the pretended workers of a world of `size` would have done."""

    size: int
    entries: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    layouts: list[Layout] = field(default_factory=list)
    expected: tuple[int, ...] | None = None
    """The global shape of the tensor that will be asked for next, in balanced blocks; goes before declared layouts."""
    following: list[tuple[int, ...]] = field(default_factory=list)
    """Those asked for after it, one by one; the last stays. `expect` says all of them."""
    phase: str = ""
    """Written into every entry: whoever runs the workers may say what they are doing, "backward" say."""
    answers: dict[Any, Any] = field(default_factory=dict)
    """What workers were told, and have said, so far: by call."""
    workers_per_node: int = 1
    """How many workers with consecutive ranks share a machine, and add up sums through its memory."""

    def worker(self, rank: int) -> CountingTransport:
        """The transport of pretended worker `rank`."""
        if not 0 <= rank < self.size:
            raise PartitionError(f"`rank` (={rank}) is no worker of a world of {self.size}.")
        return CountingTransport(self, rank)

    def declare(self, *layouts: Layout) -> None:
        """Say how tensors are cut: the answer when a layer wants to know everybody's blocks."""
        self.layouts = [*layouts, *self.layouts]

    def expect(self, *shapes: tuple[int, ...]) -> None:
        """Say the global shapes, in balanced blocks, of the tensors that will be asked for next, in their order.

        None at all: declared layouts answer.
        """
        self.expected, self.following = shapes[0] if shapes else None, list(shapes[1:])

    def bytes_sent(self, rank: int, kind: str | None = None) -> int:
        """How many bytes a worker would have sent, in all or of one kind (message, sum, copy, control)."""
        return sum(entry.nbytes for entry in self.entries[rank] if kind in (None, entry.kind))

    def bytes_received(self, rank: int) -> int:
        """How many bytes of point-to-point messages a worker would have received."""
        return sum(entry.received for entry in self.entries[rank])

    def messages_sent(self, rank: int) -> int:
        """How many point-to-point messages a worker would have sent."""
        return sum(entry.kind == "message" for entry in self.entries[rank])


class _UnderWay:
    """A sum on one machine: until it is waited for, it takes room for the shares of the others (`messages.share_sum`)."""

    def __init__(self, x: Tensor, workers: int) -> None:
        self._room: Tensor | None = x.new_empty((workers - 1, -(-x.numel() // workers)))

    def wait(self) -> None:
        self._room = None


class CountingTransport(Transport):
    """One pretended worker of a `Ledger`."""

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
                f"{block}.\n  fix: ledger.declare(Layout.balanced(P_x.grid, global_shape)) before the call."
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
        """What tells a call from all others, alike on all workers: they make the same ones in the same order."""
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

    def _post(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Request:
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
        if (values == ABSTAINS).any():  # a ballot, in which not everybody has a say on everything
            question = self._question("votes", self._what, team)
            before = self.ledger.answers.get(question, values)
            if before.shape == values.shape:
                np.maximum(values, before, out=values)
            self.ledger.answers[question] = values.copy()

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        self._note("control", team, len(data))
        return [data] * len(team)  # the others would say the same

    def abort(self, code: int = 1) -> None:
        os._exit(code)
