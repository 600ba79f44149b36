"""Search: try the grids of a given number of workers, and rank those that fit into memory by the time of a step.

    1. every way to write the number of workers as a product of extents, none longer than its dim
    2. on each, run one worker in the middle and two at corners: where most is sent and where blocks are largest
    3. plan the best in full, and rank again, until the first is one of these

If nothing fits, possible remedies are tried, not guessed: recomputing layers in backward, half precision, more workers.
Without a number of workers, `least_workers` finds the least that have enough memory, and searches their grids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..costs.machine import Machine
from ..errors import GridwiseError, PartitionError
from ..progress import ProgressBar
from ..tables import PrintsAsTables, readable, seconds_text, spelt
from .checkpointed import checkpointed
from .one_step import PlannedStep, meta_copy
from .report import Plan
from .roles import grid_of

TRIED, FINALISTS = 64, 3
"""How many grids are tried, those with the shortest seams first; and how many are planned in full at a time."""
CLOSE = 0.02
"""Estimates that differ by a smaller fraction count as equal."""
MOST_WORKERS = 2**16
"""Where the search for the least number of workers gives up."""
PlanGrid = Callable[[PlannedStep, tuple[int, ...], Sequence[int] | None], Plan]


@dataclass(frozen=True)
class Candidate:
    """One grid, as far as it was tried."""

    grid: tuple[int, ...]
    plan: Plan | None
    """From some workers; from all roles for the finalists. None if the model cannot run on this grid."""
    fits: bool
    problem: str = ""

    @property
    def seconds(self) -> float:
        return self.plan.time.seconds if self.plan else math.inf

    @property
    def memory(self) -> int:
        return max(worker.memory for worker in self.plan.workers) if self.plan else 0

    @property
    def sent(self) -> int:
        """Bytes that the worker sends that sends most."""
        return max(worker.sent for worker in self.plan.workers) if self.plan else 0

    @property
    def messages(self) -> int:
        return max(worker.messages for worker in self.plan.workers) if self.plan else 0


@dataclass(frozen=True)
class Ranking(PrintsAsTables):
    """Ranked grids: those that fit first, the fastest of them in front. Prints as a table.

    Parameters
    ----------
    model, workers, input_shape : as given to `plan`
    limit : bytes of memory per worker
    machine : the one that times are estimated for
    rows : the grids, the best first
    left_out : how many grids were not tried, because there are too many
    advice : why the best is best, or what would make it fit

    Examples
    --------
    >>> ranking = gridwise.plan(model, workers=2, input_shape=(4, 2), memory="1GiB")
    >>> ranking.best.grid
    (2, 1)
    """

    model: str
    workers: int
    input_shape: tuple[int, ...]
    limit: int
    """Bytes of memory per worker."""
    machine: Machine
    rows: tuple[Candidate, ...]
    left_out: int
    """How many grids were not tried, because there are too many."""
    advice: tuple[str, ...]
    """Why the best is best, or what would make it fit."""

    @property
    def best(self) -> Plan:
        """The plan of the fastest grid that fits."""
        if not self.rows or not self.rows[0].fits or self.rows[0].plan is None:
            raise PartitionError("plan: no grid fits.\n  " + "\n  ".join(self.advice))
        return self.rows[0].plan

    def _tables(self) -> list[tuple[list[list[str]], str]]:
        lines = [["grid", "step", "compute", "communication", "waiting", "memory", "sent", "messages", "fits"]]
        for row in self.rows:
            name = spelt(row.grid)
            if row.plan is None:
                lines.append([name, *[""] * 7, row.problem])
                continue
            time = row.plan.time
            seconds = [seconds_text(s) for s in (time.seconds, time.compute, time.communication, time.waiting)]
            fits = "yes" if row.fits else "no"
            lines.append([name, *seconds, readable(row.memory), readable(row.sent), str(row.messages), fits])
        asked = f"{self.workers} workers of {readable(self.limit)} each"
        return [(lines, f"{self.model} on {asked}, input {spelt(self.input_shape)}, on {self.machine.name}")]

    def _notes(self) -> list[str]:
        words = list(self.advice)
        if self.left_out:
            words.append(f"{self.left_out} grids with longer seams were not tried.")
        if not self.machine.measured:
            words.append("The machine's numbers are not measured: trust the order more than the seconds.")
        return words


def least_workers(task: PlannedStep, limit: int, plan_grid: PlanGrid) -> Ranking:
    """Rank the grids of the least number of workers that have enough memory with `limit` bytes each.

    The number is doubled until one fits, and then halved into: of each, the grids with the shortest seams are tried.
    """
    bar = ProgressBar("trying numbers of workers", None, patience=1.0, stays=False)

    def fits(workers: int) -> bool:
        bar.report(workers)
        grids = _promising(workers, task.shape)[:FINALISTS]
        return any(_tried(task, grid, limit, plan_grid, whole=False).fits for grid in grids)

    below, enough = 0, 1  # `below` does not fit
    while not fits(enough):
        below, enough = enough, 2 * enough
        if enough > min(MOST_WORKERS, math.prod(task.shape)):
            bar.close()
            return search(task, below, limit, plan_grid)  # says what would fit
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if fits(middle) else (middle, enough)
    bar.close()
    found = search(task, enough, limit, plan_grid)
    while not found.rows[0].fits and enough < MOST_WORKERS:  # some worker needs more than those that were tried
        enough += 1
        if _promising(enough, task.shape):
            found = search(task, enough, limit, plan_grid)
    return replace(
        found, advice=(f"{enough} workers are the least that were found to have enough memory.", *found.advice)
    )


def _tried(task: PlannedStep, grid: tuple[int, ...], limit: int, plan_grid: PlanGrid, whole: bool) -> Candidate:
    try:
        found = plan_grid(task, grid, None if whole else _corners(grid))
    except GridwiseError as error:
        return Candidate(grid, None, False, str(error).splitlines()[0])
    return Candidate(grid, found, max(worker.memory for worker in found.workers) <= limit)


def search(task: PlannedStep, workers: int, limit: int, plan_grid: PlanGrid) -> Ranking:
    """Rank the grids of `workers` workers with `limit` bytes of memory each."""
    bar = ProgressBar(f"trying grids of {workers} workers", None, patience=1.0, stays=False)
    count = itertools.count(1)

    def tried(task: PlannedStep, grid: tuple[int, ...], whole: bool = False) -> Candidate:
        bar.report(next(count), spelt(grid))
        return _tried(task, grid, limit, plan_grid, whole)

    try:
        return _ranked(task, workers, limit, tried)
    finally:
        bar.close()


def _ranked(task: PlannedStep, workers: int, limit: int, tried: Callable[..., Candidate]) -> Ranking:
    grids = _promising(workers, task.shape)
    if not grids:
        raise PartitionError(
            f"plan: `workers` (={workers}) cannot be arranged on an input of shape {task.shape}: no product of extents, "
            "none longer than its dim, gives that number.\n  fix: another number of workers, or a larger input."
        )
    rows = sorted((tried(task, grid) for grid in grids[:TRIED]), key=_order)
    finalists: dict[tuple[int, ...], Candidate] = {}
    while rows[0].grid not in finalists:  # in full, a plan may fall behind one that is not
        for row in rows[:FINALISTS]:
            if row.grid not in finalists:
                finalists[row.grid] = tried(task, row.grid, whole=True) if row.plan else row
        rows = sorted((finalists.get(row.grid, row) for row in rows), key=_order)
    best, left_out = rows[0], max(0, len(grids) - TRIED)
    if best.plan is None:
        raise PartitionError(f"plan: no grid of {workers} workers can run the model.\n  {best.grid}: {best.problem}")
    advice = _why(rows) if best.fits else _what_would_fit(task, workers, limit, best, tried)
    return Ranking(
        type(task.model).__name__, workers, task.shape, limit, task.machine, tuple(rows), left_out, tuple(advice)
    )


def grids_of(workers: int, shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every grid of `workers` workers with an axis for each dim, none longer than the dim."""
    if not shape:
        if workers == 1:
            yield ()
        return
    for extent in range(1, min(workers, shape[0]) + 1):
        if workers % extent == 0:
            for rest in grids_of(workers // extent, shape[1:]):
                yield (extent, *rest)


def _promising(workers: int, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """The grids of `workers` workers, those with the shortest seams between blocks first; cuts between samples have none.

    Among equals, those that cut earlier dims come first: what is sent there is contiguous in memory.
    """

    def seams(grid: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        inner = sum((p > 1) * p / max(1, n) for p, n in zip(grid[1:], shape[1:], strict=True))
        uneven = sum(n % p > 0 for p, n in zip(grid, shape, strict=True))
        return inner + uneven, tuple(reversed(grid))

    return sorted(grids_of(workers, shape), key=seams)


def _corners(grid: tuple[int, ...]) -> list[int]:
    size = math.prod(grid)
    middle = grid_of(grid).rank_at([extent // 2 for extent in grid])
    return sorted({0, middle, size - 1})


def _order(row: Candidate) -> tuple[bool, bool, float, int]:
    return row.plan is None, not row.fits, row.seconds if row.fits else row.memory, row.memory


def _why(rows: Sequence[Candidate]) -> list[str]:
    """Compare the best with the next, and with the grid that sends least."""
    best, *others = (row for row in rows if row.plan is not None)
    assert best.plan is not None
    name, time = spelt(best.grid), best.plan.time
    longest = max(time.layers, key=lambda layer: layer.seconds)
    part = f"Its longest part is {longest.layer}, {longest.phase}: {seconds_text(longest.seconds)}."
    if not others:
        return [f"{name} is the only grid that can be run.", part]
    after = others[0]
    if not after.fits:
        return [f"{name} is best: of the others, {spelt(after.grid)} needs least, {readable(after.memory)}.", part]
    if after.seconds - best.seconds < CLOSE * best.seconds:
        words = [f"{name} is best, and {spelt(after.grid)} as good, as far as an estimate can tell."]
    else:
        words = [f"{name} is best: {spelt(after.grid)}, the next, {_lost(best, after)}."]
    frugal = min((row for row in others if row.fits), key=lambda row: row.sent)
    if frugal is not after and frugal.sent < best.sent:
        words.append(f"{spelt(frugal.grid)} sends least, but {_lost(best, frugal)}.")
    return [*words, part]


def _lost(best: Candidate, other: Candidate) -> str:
    """Where a grid loses time against the best one."""
    assert best.plan is not None
    assert other.plan is not None
    more = {
        part: getattr(other.plan.time, part) - getattr(best.plan.time, part)
        for part in ("compute", "communication", "waiting")
    }
    where = max(more, key=lambda part: more[part])
    return (
        f"takes {seconds_text(other.seconds - best.seconds)} longer, most of it {where} (its busiest worker sends "
        f"{readable(other.sent)} in {other.messages} messages, that of the best {readable(best.sent)} in {best.messages})"
    )


def _what_would_fit(
    task: PlannedStep,
    workers: int,
    limit: int,
    least: Candidate,
    tried: Callable[..., Candidate],
) -> Iterator[str]:
    """Try remedies on the grid that needs least memory, and report each."""
    yield f"No grid fits into {readable(limit)}; {spelt(least.grid)} needs least, {readable(least.memory)}."
    half = torch.bfloat16
    again = replace(task, model=checkpointed(task.model), recordings=[])
    small = replace(task, model=meta_copy(task.model).to(half), dtype=half, recordings=[])
    cut = (
        [("parameters are cut (parameters='cut')", replace(task, parameters="cut"))] if task.parameters != "cut" else []
    )
    for words, changed in (
        *cut,
        ("layers are computed again in backward (checkpointing)", again),
        ("it is in bfloat16", small),
    ):
        row = tried(changed, least.grid, whole=True)
        if row.plan is not None:
            yield f"If {words}, it needs {readable(row.memory)} there: {'fits' if row.fits else 'does not fit'}."
    for more in (2 * workers, 4 * workers, 8 * workers):
        row = min((tried(task, grid) for grid in _promising(more, task.shape)[:4]), key=_order, default=least)
        if row.fits and (row := tried(task, row.grid, whole=True)).fits:
            yield f"On {more} workers, {spelt(row.grid)}, it needs {readable(row.memory)}: fits."
            return
    yield f"Not on {8 * workers} workers either, as far as was tried."
