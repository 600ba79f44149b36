"""The last batch that each data loader has given to this worker, compared at no extra cost whenever workers agree.

A loader notes its batch here (`draw`). An agreement over workers that all draw from that loader (`agree_plan`) mixes a key
of the batch into what it compares anyway. So a worker that has skipped a batch is detected at the next call of a model, and
a batch that one worker could not read is an error on all of them, without an additional message.
"""

from __future__ import annotations

from typing import NamedTuple

Team = tuple[int, ...]

KEPT = 8
"""The number of loaders whose last batch is remembered: the most recently used ones."""


class DrawnBatch(NamedTuple):
    """A batch that a loader has given to this worker."""

    team: Team
    """The workers that draw from the loader."""
    key: int
    """A hash, below 2**62, of the loader, the epoch and the samples; the same on all of these workers."""
    description: str
    problem: str | None = None
    """Why this worker's part of the batch could not be read; None if it could."""


class DrawnBatches:
    """The last batch of each loader, in the order of drawing."""

    def __init__(self) -> None:
        self._last: dict[str, DrawnBatch] = {}
        self._looked_up: dict[Team, tuple[int, str | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def draw(self, loader: str, batch: DrawnBatch) -> None:
        """Note that `loader` has given `batch` to this worker."""
        self._last.pop(loader, None)
        self._last[loader] = batch
        if len(self._last) > KEPT:
            del self._last[next(iter(self._last))]
        self._looked_up.clear()

    def of(self, team: Team) -> tuple[int, str | None]:
        """A key of the last batches from loaders that the whole team draws from, and why one could not be read.

        The key is 0 if there are none; the reason is None if this worker has no problem to report.
        """
        if team not in self._looked_up:
            key, batches = 0, self._drawn_by(team)
            for batch in batches:
                key ^= batch.key
            problems = [f"{batch.description}: {batch.problem}" for batch in batches if batch.problem is not None]
            self._looked_up[team] = key, "; ".join(problems) or None
        return self._looked_up[team]

    def describe(self, team: Team) -> str:
        """A description of those batches."""
        return "; ".join(batch.description for batch in self._drawn_by(team)) or "no batch"

    def has_unreported_problem(self, loader: str) -> bool:
        """Whether the last batch of a loader has a problem that the other workers still have to learn of."""
        return loader in self._last and self._last[loader].problem is not None

    def forget(self, loader: str) -> None:
        """Forget the last batch of a loader."""
        self._last.pop(loader, None)
        self._looked_up.clear()

    def forget_of(self, team: Team) -> None:
        """Forget the batches of `of(team)`, once their error has been raised on all workers of the team."""
        members = set(team)
        self._last = {name: batch for name, batch in self._last.items() if not members <= set(batch.team)}
        self._looked_up.clear()

    def clear(self) -> None:
        """Forget everything, before another program runs."""
        self._last.clear()
        self._looked_up.clear()

    def _drawn_by(self, team: Team) -> list[DrawnBatch]:
        members = set(team)
        return [batch for batch in self._last.values() if members <= set(batch.team)]
