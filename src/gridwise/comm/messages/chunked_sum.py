"""A sum over a team, in chunks: begun now, completed later.

    begun    each worker sends every other worker the chunk which that one sums, and receives its own chunk from all
    added    each worker sums its chunk, in the order of the team, and sends the result to all others
    ended    each worker has all results

Each worker sends two messages to every other. On a narrower wire each number is rounded once before it is sent, the sum is
taken in the tensor's dtype, and rounded once before it is sent back. All workers end with the same bits, including the one
that summed the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .requests import Request

PeerTensors = Sequence[tuple[int, Tensor]]
Post = Callable[[PeerTensors, PeerTensors], Request]
"""Called with (sends, receives): starts sending and receiving contiguous tensors."""


class ChunkedSum:
    """The sum of the flat contiguous `x` over a team, written into `out`, which may be `x` itself.

    Neither may be touched before `wait` has returned.
    """

    def __init__(
        self,
        out: Tensor,
        x: Tensor,
        team: Sequence[int],
        me: int,
        post: Post,
        wire: torch.dtype | None = None,
        room: Tensor | None = None,
    ) -> None:
        self._out, self._post, self._index = out, post, team.index(me)
        is_narrow = wire is not None and wire != x.dtype
        self._sent = x.to(wire) if is_narrow else x
        self._results = self._sent if is_narrow else out
        self._cuts = list(pairwise(x.numel() * i // len(team) for i in range(len(team) + 1)))
        self._others = [(i, rank) for i, rank in enumerate(team) if rank != me]
        own = self._chunk(self._sent, self._index)
        if room is None:
            room = own.new_empty((len(self._others), own.numel()))
        self._heard = {i: row[: own.numel()] for (i, _), row in zip(self._others, room, strict=True)}
        self._heard[self._index] = own
        self._is_added = False
        self._pending = post(
            [(rank, self._chunk(self._sent, i)) for i, rank in self._others],
            [(rank, self._heard[i]) for i, rank in self._others],
        )

    def _chunk(self, flat: Tensor, index: int) -> Tensor:
        start, stop = self._cuts[index]
        return flat[start:stop]

    def add(self) -> None:
        """Wait for all parts of this worker's chunk, sum them, and start sending the result to the others."""
        if self._is_added:
            return
        self._pending.wait()
        parts = [self._heard[i] for i in range(len(self._cuts))]
        result = self._chunk(self._results, self._index)
        if self._results is self._out:
            total = torch.add(parts[0], parts[1], out=result if len(parts) == 2 else None)
            for i, part in enumerate(parts[2:], 3):
                torch.add(total, part, out=result if i == len(parts) else total)
        else:
            wide = parts[0].to(self._out.dtype)
            for part in parts[1:]:
                wide.add_(part)
            result.copy_(wide)
        self._heard.clear()
        self._pending = self._post(
            [(rank, result) for _, rank in self._others],
            [(rank, self._chunk(self._results, i)) for i, rank in self._others],
        )
        self._is_added = True

    def wait(self) -> None:
        """Return when `out` holds the sum."""
        self.add()
        self._pending.wait()
        if self._results is not self._out:
            self._out.copy_(self._results)


class LateSum:
    """A sum of a few numbers, which is not worth beginning early: all of it is done when its turn comes."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make: Callable[[], object] | None = make

    def add(self) -> None:
        if self._make is not None:
            self._make()
            self._make = None

    def wait(self) -> None:
        self.add()


class Begun:
    """One of several pending sums: the first wait for any of them sums this worker's chunk of all.

    All workers begin the sums in the same order, so their messages are in that order, whichever is waited for first. A sum
    that nobody waits for, because its backward was abandoned, is completed along with the others.
    """

    def __init__(self, own: ChunkedSum | LateSum, sums: list[ChunkedSum | LateSum]) -> None:
        self._own, self._sums = own, sums
        sums.append(own)

    def wait(self) -> None:
        if self._own in self._sums:
            for each in self._sums:
                each.add()
            self._sums.clear()
        self._own.wait()
