"""What a tiled call does, before it is run: stages, tiles, work, bytes stored, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..models.recording.containers import flatten
from ..tables import Lines, PrintsAsTables, readable
from .runner import Scheduled, TiledRunner
from .schedule import stage_footprint


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
    """What a tiled call does, stage by stage."""

    title: str
    stages: tuple[StagePlan, ...]
    memory: int | None
    on_disk: bool
    stored_peak: int

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

    def _tables(self) -> Sequence[tuple[Lines, str]]:
        head = ("stage", "shape", "tile", "tiles", "work", "reads", "stores", "peak")
        lines = [
            (
                stage.name, " x ".join(map(str, stage.shape)), " x ".join(map(str, stage.tile)), f"{stage.tiles:,}",
                f"{stage.work:.2f}", readable(stage.read), readable(stage.stored), readable(stage.peak),
            )
            for stage in self.stages
        ]  # fmt: skip
        return [([head, *lines], self.title)]

    def _notes(self) -> Sequence[str]:
        where = "in files" if self.on_disk else "in memory"
        return [
            f"{self.tiles:,} tiles, {self.work:.2f} times the work; at most {readable(self.peak)} at a time, and "
            f"{readable(self.stored_peak)} stored {where}."
        ]


def plan_of(runner: TiledRunner, shapes: Sequence[Any], backward: bool) -> TilePlan:
    """The plan of a call with inputs of these shapes."""
    leaves, tree = flatten((tuple(_like(runner, each) for each in shapes), {}))
    with torch.set_grad_enabled(backward):
        found = runner.schedule_for(leaves, tree)
    schedule = found.schedule
    stages = [_stage(found, number, backward) for number in range(len(schedule.stages))]
    return TilePlan(runner.says, tuple(stages), schedule.memory, found.folder is not None, schedule.stored_peak)


def _like(runner: TiledRunner, given: Any) -> Any:
    if isinstance(given, Tensor):
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
