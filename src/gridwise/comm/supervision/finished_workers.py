"""Which workers have finished, and who waits for them in vain.

Workers count the collectives of each team, and the messages between each pair of workers. So it is known, rather than
inferred from a timeout, that a worker has finished without doing what another waits for: one that did its part and left
early, as the root of a broadcast may, has counted it; one that is slow or computing has not finished.

A worker has finished when its process ends; in a pool, when its part of the task has ended.

Imports only the standard library, because `hub` runs without Gridwise.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SAME_CALLS = "let every worker call the same operators in the same order, as often as the others"
ALL_CALL = "make every worker of an operator call it, in the same order, forward and backward; inactive ones too."


def team_name(world: str, team: Sequence[int]) -> str:
    """The name under which the collectives of a team of a world are counted."""
    return hashlib.blake2b(repr((world, tuple(team))).encode(), digest_size=8).hexdigest()


def message_name(world: str, source: int, target: int) -> str:
    """The name under which messages from one worker of a world to another are counted."""
    return f"{world}{source}>{target}"


@dataclass(frozen=True)
class Wait:
    """What a worker waits for, in the form sent to others (see `waiting.Waiting`)."""

    what: str
    needs: Mapping[int, tuple[str, int]]
    """For each worker of the team, the name of the count that is waited for, and the number that it must reach."""
    seconds: float

    @property
    def team(self) -> tuple[int, ...]:
        return tuple(self.needs)

    def __str__(self) -> str:
        return f"has waited {self.seconds:.0f} s for {self.what} with workers {self.team}"


@dataclass
class FinishedWorkers:
    """The workers that have finished: when this became known, and what they took part in."""

    since: dict[int, float] = field(default_factory=dict)
    counts: dict[int, Mapping[str, int]] = field(default_factory=dict)

    def add(self, rank: int, counts: Mapping[str, int]) -> None:
        self.counts[rank], self.since[rank] = counts, time.monotonic()

    def among(self, team: Sequence[int]) -> list[int]:
        """The workers of a team that have finished."""
        return [rank for rank in team if rank in self.since]

    def awaited(self, wait: Wait, settle: float = 0.0) -> int | None:
        """A worker that finished more than `settle` seconds ago and will never do what `wait` needs; None if none has."""
        now = time.monotonic()
        for rank in self.among(wait.team):
            name, number = wait.needs[rank]
            if self.counts[rank].get(name, 0) < number and min(now - self.since[rank], wait.seconds) > settle:
                return rank
        return None


def deserted(by: int, size: int, rank: int, wait: Wait) -> str:
    """The error message for worker `rank`, which waits for worker `by`, which has finished."""
    return f"worker {by} of {size} has finished, but worker {rank} {wait}\n  fix: {SAME_CALLS}"
