"""Who has finished, and who waits for them in vain.

Workers count the collectives of each team, and the messages from each worker to each other one. So it is known, and not
guessed by the clock, that a worker has finished without what another waits for: one that did its part and left early, as
the root of a broadcast may, has counted it; one that is slow or computes has not finished.

Finished for good is a worker whose process ends. A pool's worker finishes one task after the other: it is waited for in
vain by those who are still in that task, and nobody else.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...errors import WorkerDied

FOR_GOOD = math.inf
SAME_CALLS = "let every worker call the same operators in the same order, as often as the others"


class Counts(Protocol):
    """A transport, as far as it counts what this worker took part in."""

    rank: int
    collectives: dict[tuple[int, ...], int]
    sent: dict[int, int]
    received: dict[int, int]


def counted(transport: Counts) -> dict[str, int]:
    """Collectives and messages of this worker so far, under short names, the same on every worker."""
    me = transport.rank
    return {
        **{team_name(team): count for team, count in list(transport.collectives.items())},
        **{message_name(me, peer): count for peer, count in list(transport.sent.items())},
        **{message_name(peer, me): count for peer, count in list(transport.received.items())},
    }


def team_name(team: Sequence[int]) -> str:
    """What collectives of a team are counted under."""
    return hashlib.blake2b(repr(tuple(team)).encode(), digest_size=8).hexdigest()


def message_name(source: int, target: int) -> str:
    """What messages from one worker to another are counted under."""
    return f"{source}>{target}"


@dataclass(frozen=True)
class Wait:
    """What a worker waits for, as it tells others: see `waiting.Waiting`."""

    what: str
    team: tuple[int, ...]
    needs: Mapping[int, tuple[str, int]]
    """For each of the team, under which name what is waited for is counted, and up to which number."""
    seconds: float

    def __str__(self) -> str:
        return f"has waited {self.seconds:.0f} s for {self.what} with workers {self.team}"


@dataclass
class FinishedWorkers:
    """The workers that have finished: when that was heard, and what they took part in."""

    task: float = 0
    """Of a pool, in which this worker is; those who have finished an earlier one will come to this."""
    since: dict[int, float] = field(default_factory=dict)
    tasks: dict[int, float] = field(default_factory=dict)
    counts: dict[int, Mapping[str, int]] = field(default_factory=dict)

    def add(self, rank: int, counts: Mapping[str, int], task: float = FOR_GOOD) -> None:
        if task > self.tasks.get(rank, -1):
            self.tasks[rank], self.counts[rank], self.since[rank] = task, counts, time.monotonic()

    def among(self, team: Sequence[int]) -> list[int]:
        """Those of a team that have finished."""
        return [rank for rank in team if self.tasks.get(rank, -1) >= self.task]

    def awaited(self, wait: Wait, settle: float = 0.0) -> int | None:
        """A worker that has finished more than `settle` seconds ago and will never come to what is waited for."""
        now = time.monotonic()
        for rank in self.among(wait.team):
            name, number = wait.needs.get(rank, ("", 0))
            if self.counts[rank].get(name, 0) < number and min(now - self.since[rank], wait.seconds) > settle:
                return rank
        return None


def deserted(by: int, size: int, rank: int, wait: Wait) -> WorkerDied:
    """The error of a worker `rank` that waits for one that has finished."""
    text = f"worker {by} of {size} has finished, but worker {rank} {wait}\n  fix: {SAME_CALLS}"
    return WorkerDied(text, (by,))
