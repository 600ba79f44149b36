"""Agreement among the workers of a save or a load: an error on one worker is raised on all, with the same text.

Messages are few and small: JSON, never pickle. Every step is *try locally, then agree*; no worker raises between two
agreements, so none waits for a worker that has left.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from ..comm.agreement import attempt as attempt
from ..comm.agreement import key_of, largest, opening
from ..comm.transports.base import Team, Transport
from ..errors import CheckpointError, CheckpointMismatch, PartitionError
from ..partition import Partition, world
from .store_path import Place, place_of

Result = TypeVar("Result")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection while many small long-lived objects are made: it would scan all of them repeatedly."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


in_flight: dict[tuple[Transport, Team], Callable[[], None]] = {}
"""What waits for the save that a team has in the background; at most one per team (see `background`)."""


class Consensus:
    """The workers that save or load together, and what they are doing, for errors."""

    def __init__(self, P: Partition | None, doing: str, path: Place) -> None:
        if sys.byteorder != "little":
            raise CheckpointError(
                f"{doing} {path}: this machine is {sys.byteorder}-endian, and checkpoints hold the bytes of little-endian "
                "numbers, as they lie in memory.\n  fix: a little-endian machine; nothing is converted."
            )
        self.P = P if P is not None else world()
        if not self.P.active:
            raise PartitionError(f"{doing} {path}: this worker is not in {self.P}, only its workers take part.")
        self.transport = self.P.transport
        self.team = self.P.team
        self.rank = self.transport.rank
        self.index = self.P.rank
        self.size = self.P.size
        self.root = self.P.ranks[0]
        self.what = f"{doing} {path}"

    def settle(self) -> None:
        """Wait for the background save of these workers, if there is one, and raise what went wrong with it."""
        wait = in_flight.get((self.transport, self.team))
        if wait is not None:
            wait()

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    def together(
        self, step: Callable[[], Result], failure: type[CheckpointError] = CheckpointError, tail: str = ""
    ) -> Result:
        """Run `step` on every worker, then agree: its result, or the same error on all of them."""
        result, error = attempt(step)
        self.agree(error, failure, tail)
        return cast(Result, result)

    def on_root(
        self, step: Callable[[], Result], failure: type[CheckpointError] = CheckpointError, tail: str = ""
    ) -> Result | None:
        """Run `step` on the first worker: its result there, None on the others, or the same error on all of them."""
        return self.together(lambda: step() if self.is_root else None, failure, tail)

    def agree(
        self,
        error: Exception | None,
        failure: type[CheckpointError] = CheckpointError,
        tail: str = "",
        numbers: Sequence[int] = (),
    ) -> list[int]:
        """The maximum of each of the `numbers` over the workers; if one has an error, raise the same error on all."""
        failed, *most = largest(self.transport, self.team, self.what, error is not None, *numbers)
        if not failed:
            return most
        mine = b"" if error is None else json.dumps([_kind_of(error), str(error) or repr(error)]).encode()
        texts = [json.loads(part) if part else None for part in self.transport.gather_bytes(mine, self.team, self.what)]
        raise joint_error(self.what, dict(zip(self.team, texts, strict=True)), failure, tail) from error

    def from_root(self, step: Callable[[], bytes]) -> bytes:
        """The bytes that `step` returns on the first worker, on every worker; or the same error on all of them."""
        data, error = attempt(lambda: step() if self.is_root else b"")
        (size,) = self.agree(error, numbers=[len(data or b"")])
        if not size:
            return b""
        buffer = torch.frombuffer(bytearray(data or bytes(size)), dtype=torch.uint8)
        self.transport.copy_from(buffer, self.root, self.team, self.what)
        return buffer.numpy().tobytes()

    def gathered_from_others(
        self, step: Callable[[], bytes], failure: type[CheckpointError] = CheckpointError, tail: str = ""
    ) -> list[bytes]:
        """On the first worker, the results of `step` on the others, in the partition's order; or one error on all."""
        mine, error = attempt(step)
        sizes = [0] * self.size
        sizes[self.index] = len(mine or b"")
        sizes = self.agree(error, failure, tail, sizes)
        if not self.is_root:
            data = torch.frombuffer(bytearray(mine or b""), dtype=torch.uint8)
            self.transport.exchange([(self.root, data)], [], self.what)
            return []
        buffers = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in sizes[1:]]
        self.transport.exchange([], list(zip(self.P.ranks[1:], buffers, strict=True)), self.what)
        return [buffer.numpy().tobytes() for buffer in buffers]

    def vote(self, call: str, number: int, state: int) -> tuple[bool, int]:
        """Whether all workers have the same `number`, and the largest `state`; all must be making the same `call`."""
        found = opening(self.transport, self.team, self.what, key_of(call), number, state)
        return found.is_common, found.problem

    def check_one_path(self, path: Place, same: Callable[[Place], object] = str) -> None:
        """Raise on all workers unless they gave one path, as far as `same` tells; only needed once something is wrong."""
        given = [place_of(each) for each in self.gather_json(str(path))]
        if len({same(each) for each in given}) > 1:
            raise CheckpointMismatch(
                f"{self.what.partition(' ')[0]}: the workers gave different paths.",
                shortened([f"worker {rank}: {each}" for rank, each in zip(self.team, given, strict=True)]),
                "give all of them one path, on a file system or in a store that they share: each has its own part there.",
            )

    def gather_json(self, message: object) -> list[Any]:
        """The messages of all workers, in the order of the team, on every worker."""
        data = json.dumps(message, separators=(",", ":")).encode()
        return [json.loads(part) for part in self.transport.gather_bytes(data, self.team, self.what)]


MOST_NAMED = 8
"""Most lines or names in one error."""


def shortened(lines: Sequence[str]) -> list[str]:
    """The first lines of an error, and how many more there are."""
    more = len(lines) - MOST_NAMED
    return [*lines[:MOST_NAMED], *([f"... and {more} more"] if more > 0 else [])]


_KINDS = {kind.__name__: kind for kind in CheckpointError.__subclasses__()}


def _kind_of(error: Exception) -> str:
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "")


def joint_error(
    what: str, messages: dict[int, list[str] | None], failure: type[CheckpointError], tail: str
) -> CheckpointError:
    """One error for all workers: each distinct text once, with the workers that have it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, words in messages.items():
        if words is not None:
            kind, text = words
            groups.setdefault((kind, text), []).append(rank)
    kinds = {_KINDS.get(kind, failure) for kind, _ in groups}
    lines = []
    for (_, text), ranks in groups.items():
        who = "" if len(messages) == 1 else f"worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: "
        lines.append(f"{what}: {who}{text}")
    return (kinds.pop() if len(kinds) == 1 else failure)("\n".join(lines) + tail)
