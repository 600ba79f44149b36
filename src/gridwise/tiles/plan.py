"""What a tiled call does, before it is run: stages, tiles, work, bytes stored, memory, time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ..html import chart, page
from ..local_path import local_path
from ..models.recording.containers import flatten
from ..tables import Lines, PrintsAsTables, readable, seconds_text, spelt
from .runner import Scheduled, TiledRunner, is_array, opened
from .schedule import stage_footprint
from .timing import seconds_of


@dataclass(frozen=True)
class StagePlan:
    """One stage: values that are computed in one pass."""

    name: str
    """The operator at its end, with module and line."""
    shape: tuple[int, ...]
    tile: tuple[int, ...]
    tiles: int
    work: float
    """Operations, over those of computing everything once."""
    flops: float
    stored: int
    """Bytes that it writes."""
    read: int
    """Bytes that it reads."""
    peak: int
    """Bytes that a tile holds."""


@dataclass(frozen=True)
class TilePlan(PrintsAsTables):
    """What a tiled call does, stage by stage. Prints as a table; `gridwise.show.planned` draws it.

    Parameters
    ----------
    title : what is called
    stages : in the order in which they run
    memory : the limit, in bytes; None if the size of tiles is given
    on_disk : whether what lies between stages is in files
    stored : bytes that are stored after each stage, without inputs and outputs
    stored_peak : the most that is stored at a time

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.Conv2d(8, 1, 3))
    >>> plan = gridwise.tiled(model, memory="2MiB").plan((1, 1, 512, 512))
    >>> plan.peak < 2**21, plan.seconds > 0
    (True, True)
    """

    title: str
    stages: tuple[StagePlan, ...]
    memory: int | None
    on_disk: bool
    stored: tuple[int, ...]
    stored_peak: int
    measure: Callable[[], list[tuple[float, float]]] = field(repr=False, compare=False)
    """Measures operators, and estimates the times of stages."""

    @property
    def peak(self) -> int:
        """The most bytes that a call holds on the device, besides parameters and the user's own tensors."""
        return max((stage.peak for stage in self.stages), default=0)

    @property
    def tiles(self) -> int:
        return sum(stage.tiles for stage in self.stages)

    @property
    def work(self) -> float:
        """Operations, over those of computing everything once."""
        once = sum(stage.flops for stage in self.stages)
        return sum(stage.work * stage.flops for stage in self.stages) / once if once else 1.0

    @cached_property
    def times(self) -> list[tuple[float, float]]:
        """The estimated seconds of each stage, forward and backward.

        When they are first asked for, parts of tiles are computed to measure them, which takes a few seconds. The time
        of reading your files and of writing new ones is not counted.
        """
        return self.measure()

    @property
    def seconds(self) -> float:
        """The estimated time of a call, and of its backward if that was planned."""
        return sum(map(sum, self.times))

    def save_html(self, path: str | Path) -> None:
        """Write the plan as one self-contained HTML file."""
        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self._page(), encoding="utf-8")

    def _page(self) -> str:
        cards = [
            ("estimated time", seconds_text(self.seconds)), ("memory at most", readable(self.peak)),
            ("stored at most", readable(self.stored_peak)), ("tiles", f"{self.tiles:,}"),
            ("times the work", f"{self.work:.2f}"),
        ]  # fmt: skip
        names = [f"{number + 1}. {stage.name}" for number, stage in enumerate(self.stages)]
        seconds = [sum(each) for each in self.times]
        charts = [
            chart("Time", names, seconds, [seconds_text(each) for each in seconds]),
            chart("Memory of a tile", names, [s.peak for s in self.stages], [readable(s.peak) for s in self.stages]),
            chart("Stored after the stage", names, self.stored, list(map(readable, self.stored))),
        ]
        return page(f"{self.title} on one device", " ".join(self._notes()), cards, [*charts, *self._html_tables()])

    def _tables(self) -> Sequence[tuple[Lines, str]]:
        head = ("stage", "shape", "tile", "tiles", "work", "reads", "stores", "peak", "time")
        lines = [
            (
                stage.name, spelt(stage.shape), spelt(stage.tile), f"{stage.tiles:,}", f"{stage.work:.2f}",
                readable(stage.read), readable(stage.stored), readable(stage.peak), seconds_text(sum(times)),
            )
            for stage, times in zip(self.stages, self.times, strict=True)
        ]  # fmt: skip
        return [([head, *lines], self.title)]

    def _notes(self) -> Sequence[str]:
        where = "in files" if self.on_disk else "in memory"
        limit = "" if self.memory is None else f" of the {readable(self.memory)} allowed"
        return [
            f"{self.tiles:,} tiles, {self.work:.2f} times the work, about {seconds_text(self.seconds)}; at most "
            f"{readable(self.peak)}{limit} at a time, and {readable(self.stored_peak)} stored {where}."
        ]


def plan_of(runner: TiledRunner, shapes: Sequence[Any], backward: bool) -> TilePlan:
    """The plan of a call with inputs of these shapes."""
    given, tree = flatten((tuple(_like(runner, each) for each in shapes), {}), is_array)
    arrays = [opened(each) for each in given]
    with torch.set_grad_enabled(backward):
        found, leaves = runner.found_for(arrays, tree)
    schedule = found.schedule
    stages = [_stage(found, number, backward) for number in range(len(schedule.stages))]
    measure = partial(seconds_of, schedule, found.folder, runner.device(leaves))
    stored = tuple(schedule.stored)
    on_disk = found.folder is not None
    return TilePlan(runner.says, tuple(stages), schedule.memory, on_disk, stored, schedule.stored_peak, measure)


def _like(runner: TiledRunner, given: Any) -> Any:
    if is_array(given):
        return given
    held = (p.dtype for root in runner.roots.values() for p in root.parameters() if p.is_floating_point())
    return torch.empty(tuple(given), dtype=next(held, torch.get_default_dtype()), device="meta")


def _stage(found: Scheduled, number: int, backward: bool) -> StagePlan:
    schedule = found.schedule
    stage = schedule.stages[number]
    peak, tile, count, work = stage_footprint(stage, backward)
    read = sum(value.nbytes for value in stage.reads if not value.is_fixed)
    stored = sum(root.nbytes for root in stage.roots)
    return StagePlan(stage.name, stage.shape, tile, count, work, max(1.0, stage.least_flops), stored, read, peak)
