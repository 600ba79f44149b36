"""Which batch each data loader has given to this worker last: compared, at no cost of its own, wherever workers agree.

A loader notes its batch here (`draw`). An agreement over workers that all draw from that loader (`agree_plan`) mixes a number
for the batch into what it compares anyway. So a worker that has skipped a batch is found out at the next call of a model, and
a batch that one worker could not read is an error on all of them, without a further message.
"""

from __future__ import annotations

from typing import NamedTuple

Team = tuple[int, ...]

KEPT = 8
"""Of how many loaders the last batch is remembered: those that were drawn from last."""


class DrawnBatch(NamedTuple):
    """What a loader has given to this worker."""

    team: Team
    """The workers that draw from the loader."""
    key: int
    """A number below 2**62 for the loader, the epoch and the samples, the same on all of them."""
    says: str
    problem: str | None = None
    """Why this worker's part of it could not be read."""


class DrawnBatches:
    """The last batch of each loader, in the order in which they were drawn."""

    def __init__(self) -> None:
        self._last: dict[str, DrawnBatch] = {}
        self._looked_up: dict[Team, tuple[int, str | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def draw(self, loader: str, batch: DrawnBatch) -> None:
        """Note that `loader` gives `batch` to this worker."""
        self._last.pop(loader, None)
        self._last[loader] = batch
        if len(self._last) > KEPT:
            del self._last[next(iter(self._last))]
        self._looked_up.clear()

    def of(self, team: Team) -> tuple[int, str | None]:
        """Of the loaders from which the whole team draws: a number for their last batches, and why one could not be read.

        The number is 0 if there are none, the reason None if all workers know it.
        """
        if team not in self._looked_up:
            key, batches = 0, self._drawn_by(team)
            for batch in batches:
                key ^= batch.key
            problems = [f"{batch.says}: {batch.problem}" for batch in batches if batch.problem is not None]
            self._looked_up[team] = key, "; ".join(problems) or None
        return self._looked_up[team]

    def says(self, team: Team) -> str:
        """Those batches in words."""
        return "; ".join(batch.says for batch in self._drawn_by(team)) or "no batch"

    def is_told(self, loader: str) -> bool:
        """Whether there is nothing about the last batch of a loader that the other workers would have to know."""
        return loader not in self._last or self._last[loader].problem is None

    def forget(self, loader: str) -> None:
        """Forget the last batch of a loader."""
        self._last.pop(loader, None)
        self._looked_up.clear()

    def forget_of(self, team: Team) -> None:
        """Forget what all workers of the team have been told: they may go on from here."""
        members = set(team)
        self._last = {name: batch for name, batch in self._last.items() if not members <= set(batch.team)}
        self._looked_up.clear()

    def clear(self) -> None:
        """Forget everything: another program begins."""
        self._last.clear()
        self._looked_up.clear()

    def _drawn_by(self, team: Team) -> list[DrawnBatch]:
        members = set(team)
        return [batch for batch in self._last.values() if members <= set(batch.team)]
