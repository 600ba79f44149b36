"""Who has finished, and who waits for them in vain.

A collective is waited for in vain if a worker of its team has finished without it. Workers count the collectives of each
team, so that is known, and not guessed by the clock: one that did its part and left early, as the root of a broadcast may,
has counted it; one that is slow or computes has not finished. Messages between two are not counted: there, all who were
to send must have finished, some time ago.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import WorkerDied

ARRIVAL_SECONDS = 5.0
"""How long after the end of its sender a message may still be under way."""
SAME_CALLS = "let every worker call the same operators in the same order, as often as the others"


def named(collectives: Mapping[tuple[int, ...], int]) -> dict[str, int]:
    """The counts of a transport's collectives, with short names for the teams, the same on every worker."""
    return {_name(team): count for team, count in collectives.items()}


def _name(team: Sequence[int]) -> str:
    return hashlib.blake2b(repr(tuple(team)).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Wait:
    """What a worker waits for, as it tells others: see `waiting.Waiting`."""

    what: str
    team: tuple[int, ...]
    number: int
    """Of this collective among those of its team, from 1 on; 0 for messages between two."""
    seconds: float

    def __str__(self) -> str:
        return f"has waited {self.seconds:.0f} s for {self.what} with workers {self.team}"


@dataclass
class FinishedWorkers:
    """The workers that have finished: when that was heard, and how many collectives of each team they took part in."""

    since: dict[int, float] = field(default_factory=dict)
    collectives: dict[int, Mapping[str, int]] = field(default_factory=dict)

    def add(self, rank: int, collectives: Mapping[str, int]) -> None:
        if rank not in self.since:
            self.since[rank] = time.monotonic()
            self.collectives[rank] = collectives

    def among(self, team: Sequence[int]) -> list[int]:
        """Those of a team that have finished."""
        return [rank for rank in team if rank in self.since]

    def awaited(self, wait: Wait, settle: float = 0.0) -> int | None:
        """A worker that has finished more than `settle` seconds ago and will never come to what is waited for."""
        gone = self.among(wait.team)
        if wait.number:
            name = _name(wait.team)
            gone = [rank for rank in gone if self.collectives[rank].get(name, 0) < wait.number]
        elif len(gone) < len(wait.team):
            return None  # the messages of those who have finished may have arrived; the others are still at work
        else:
            settle = max(settle, ARRIVAL_SECONDS)
        now = time.monotonic()
        found = [rank for rank in gone if min(now - self.since[rank], wait.seconds) > settle]
        return found[0] if found and (wait.number or len(found) == len(gone)) else None


def deserted(by: int, size: int, rank: int, wait: Wait) -> WorkerDied:
    """The error of a worker `rank` that waits for one that has finished."""
    text = f"worker {by} of {size} has finished, but worker {rank} {wait}\n  fix: {SAME_CALLS}"
    return WorkerDied(text, (by,))
