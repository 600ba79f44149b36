"""Who has finished, and who waits for them in vain.

Workers count the collectives of each team, and the messages from each worker to each other one. So it is known, and not
guessed by the clock, that a worker has finished without what another waits for: one that did its part and left early, as
the root of a broadcast may, has counted it; one that is slow or computes has not finished.

A worker has finished when its process ends; for a pool, when its part of the task has ended.

Imports nothing but Python's own modules: `hub` runs without Gridwise.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SAME_CALLS = "let every worker call the same operators in the same order, as often as the others"


def team_name(world: str, team: Sequence[int]) -> str:
    """What collectives of a team of a world are counted under."""
    return hashlib.blake2b(repr((world, tuple(team))).encode(), digest_size=8).hexdigest()


def message_name(world: str, source: int, target: int) -> str:
    """What messages from one worker of a world to another are counted under."""
    return f"{world}{source}>{target}"


@dataclass(frozen=True)
class Wait:
    """What a worker waits for, as it tells others: see `waiting.Waiting`."""

    what: str
    needs: Mapping[int, tuple[str, int]]
    """For each of the team, under which name what is waited for is counted, and up to which number."""
    seconds: float

    @property
    def team(self) -> tuple[int, ...]:
        return tuple(self.needs)

    def __str__(self) -> str:
        return f"has waited {self.seconds:.0f} s for {self.what} with workers {self.team}"


@dataclass
class FinishedWorkers:
    """The workers that have finished: when that was heard, and what they took part in."""

    since: dict[int, float] = field(default_factory=dict)
    counts: dict[int, Mapping[str, int]] = field(default_factory=dict)

    def add(self, rank: int, counts: Mapping[str, int]) -> None:
        self.counts[rank], self.since[rank] = counts, time.monotonic()

    def among(self, team: Sequence[int]) -> list[int]:
        """Those of a team that have finished."""
        return [rank for rank in team if rank in self.since]

    def awaited(self, wait: Wait, settle: float = 0.0) -> int | None:
        """A worker that has finished more than `settle` seconds ago and will never come to what is waited for."""
        now = time.monotonic()
        for rank in self.among(wait.team):
            name, number = wait.needs[rank]
            if self.counts[rank].get(name, 0) < number and min(now - self.since[rank], wait.seconds) > settle:
                return rank
        return None


def deserted(by: int, size: int, rank: int, wait: Wait) -> str:
    """What is wrong with a worker `rank` that waits for one that has finished."""
    return f"worker {by} of {size} has finished, but worker {rank} {wait}\n  fix: {SAME_CALLS}"
