"""The schedule: which values are stored, and into how many tiles each stage is cut, so that a tile fits into memory.

A value is stored if

    it leaves the graph, or an operator that is computed whole makes or reads it;
    an operator needs much more of it than its tile's share: keys and values of an attention, a dim that is transformed;
    several stages use it, and it costs more to compute again than a few operations on one stored value;
    tiles of a stage would otherwise compute much of their overlaps again.

Then each stage is cut, along the dim that costs the least extra work, until what a tile holds fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from ..errors import UnsupportedError
from ..grid import Shape
from .autograd_functions import OwnBackward
from .cone import Stage, is_collecting, is_whole, stage_of, whole_stage
from .cuts import count_of, cut, exceeds, middle, peak_of, work_of
from .footprint import footprint
from .graph import GlobalValue, Operation, OperatorGraph
from .stored_values import HEAVY, LITTLE, stored_values, worth_keeping

SHARE_ON_CPU, SHARE_ON_DEVICE = 0.8, 0.9
"""The part of the memory that is planned for tiles; the rest is for what plans do not count."""
AGAIN = 1.12
"""The most work of a stage, over that of computing everything once."""
FEW = 256
"""The part of the memory from which on a value is worth storing, where tiles do not fit."""


@dataclass
class Schedule:
    """Stages in the order in which they run."""

    graph: OperatorGraph
    stages: list[Stage]
    memory: int | None
    """The bytes that a tile may hold; None: no limit."""
    backward: bool
    of_functions: dict[OwnBackward, Schedule] = field(default_factory=dict)
    """The schedules of the backwards of autograd Functions."""

    @cached_property
    def last_read(self) -> list[list[GlobalValue]]:
        """For each stage, the stored values that no later stage reads."""
        kept_to_the_end = {*self.graph.wanted}
        found: list[list[GlobalValue]] = [[] for _ in self.stages]
        seen: set[GlobalValue] = set()
        for number in reversed(range(len(self.stages))):
            stage = self.stages[number]
            made = (*stage.roots, *(y for each in stage.collects for y in each.outputs))
            for value in dict.fromkeys((*stage.reads, *made)):
                if value.source is None and value not in seen and value not in kept_to_the_end:
                    found[number].append(value)
                seen.add(value)
        return found

    @cached_property
    def stored(self) -> list[int]:
        """The bytes of stored arrays after each stage, without inputs and outputs; with backward, all are kept."""
        own = {*self.graph.outputs}
        held, found = 0, []
        for number, stage in enumerate(self.stages):
            held += sum(root.nbytes for root in stage.roots if root not in own)
            found.append(held)
            if not self.backward:
                held -= sum(v.nbytes for v in self.last_read[number] if v.by is not None and not is_collecting(v.by))
        return found

    @property
    def stored_peak(self) -> int:
        """The most that is stored at a time; in backward, cotangents too."""
        return max(self.stored, default=0) + self.stored_in_backward

    @property
    def stored_in_backward(self) -> int:
        """The most that backward stores besides what forward has."""
        if not self.backward:
            return 0
        own = 2 * max((root.nbytes for stage in self.stages for root in stage.roots), default=0)
        return own + max((each.stored_peak for each in self.of_functions.values()), default=0)

    @cached_property
    def peak(self) -> int:
        """The most bytes that a stage takes."""
        own = max((need_of(stage, self.backward) for stage in self.stages), default=0)
        return max(own, *(each.peak for each in self.of_functions.values()), 0)

    @property
    def tiles(self) -> int:
        """How many tiles there are in forward, wholes included."""
        return sum(count_of(stage, stage.counts) for stage in self.stages)

    @property
    def tiles_back(self) -> int:
        return sum(count_of(stage, stage.counts_back) for stage in self.stages if stage.requires_grad)


def scheduled(graph: OperatorGraph, memory: int | None, backward: bool, tile: Shape | None = None) -> Schedule:
    """The schedule of a graph whose tiles hold at most `memory` bytes, or are at most `tile` along the last dims.

    Raises
    ------
    UnsupportedError : if an operator needs more; it is named, with the bytes that would do
    """
    asked, device = memory, next((v.spec.device for v in graph.values()), torch.device("cpu"))
    memory = None if memory is None else int(memory * (SHARE_ON_CPU if device.type == "cpu" else SHARE_ON_DEVICE))
    kept = stored_values(graph)
    while True:
        stages = _stages(graph, kept)
        split = False
        for stage in stages:
            if stage.whole is not None:
                continue
            cut(stage, memory, backward, tile)
            new = _to_keep_too(stage, memory, backward, tile, kept)
            if new is not None:
                kept.add(new)
                split = True
        if not split:
            break
        kept = worth_keeping(graph, kept)  # a stage that is taken apart may leave both parts with the same work
    schedule = Schedule(graph, stages, asked, backward)
    if backward:
        own = dict.fromkeys(stage.own_backward for stage in stages)
        schedule.of_functions = {each: scheduled(each.graph, asked, False, tile) for each in own if each is not None}
    _check(schedule, memory)
    return schedule


def _stages(graph: OperatorGraph, kept: set[GlobalValue]) -> list[Stage]:
    """One stage for each stored value; what collects statistics of a stored value does so while it is made."""
    needed = _needed(graph)
    collects: dict[GlobalValue, list[Operation]] = {}
    alone: list[Operation] = []
    for operation in graph.operations:
        if is_collecting(operation) and operation in needed:
            first = operation.inputs[0]
            others = [v for v in operation.inputs[1:] if v.source is None]
            by = first.by
            made_here = first in kept and by is not None and by.is_local and by.backward is None and not others
            if made_here and first.shape == operation.shape and _reads_its_box(operation):
                collects.setdefault(first, []).append(operation)
            else:
                alone.append(operation)
    found: list[tuple[int, Stage]] = []
    for operation in graph.operations:
        if operation not in needed:
            continue
        if is_whole(operation):
            found.append((operation.number, whole_stage(operation)))
        elif operation in alone:
            found.append((operation.number, stage_of((), (operation,), kept)))
        elif operation.is_local:
            roots = [value for value in operation.outputs if value in kept]
            if roots:
                mine = [each for root in roots for each in collects.get(root, [])]
                found.append((operation.number, stage_of(roots, mine, kept)))
    return [stage for _, stage in sorted(found, key=lambda pair: pair[0])]


def _needed(graph: OperatorGraph) -> set[Operation]:
    """The operations on which an output, or a write, depends."""
    found: set[Operation] = set()
    left = [value.by for value in graph.wanted]
    while left:
        operation = left.pop()
        if operation is not None and operation not in found:
            found.add(operation)
            left += [value.by for value in operation.inputs]
            if operation.backward is not None:
                left += [value.by for value in operation.backward.values]
    return found


def _reads_its_box(operation: Operation) -> bool:
    box = middle(operation.shape, [2] * len(operation.shape))
    return operation.needs(box)[0] == box


def _to_keep_too(
    stage: Stage, memory: int | None, backward: bool, tile: Shape | None, kept: set[GlobalValue]
) -> GlobalValue | None:
    """A value to store as well, if the tiles of a stage do too much work again, or do not fit."""
    fits = (memory is None or peak_of(stage, backward) <= memory) and not exceeds(stage, tile)
    counts = stage.counts_back if backward else stage.counts
    if fits and work_of(stage, counts) <= AGAIN * max(1.0, stage.least_flops):
        return None
    done = 0.0
    little = LITTLE if fits or memory is None else min(LITTLE, memory // FEW)
    ends = {*stage.roots, *(v for each in stage.collects for v in each.inputs)}
    candidates: list[tuple[float, GlobalValue]] = []
    total = max(1.0, stage.least_flops)
    for operation in stage.operations:
        done += operation.flops
        for value in operation.outputs:
            # under a small limit, what is small itself may be made of something large
            counted = value.nbytes if fits else max(v.nbytes for v in (value, *operation.inputs))
            if value not in kept and value not in ends and counted > little:
                is_heavy = operation.operator.flops >= HEAVY or not fits
                if is_heavy:
                    candidates.append((abs(done / total - 0.5) + 0.1 * value.nbytes / max(1, _bytes(stage)), value))
    return min(candidates, key=lambda pair: pair[0])[1] if candidates else None


def _bytes(stage: Stage) -> int:
    return max(value.nbytes for each in stage.operations for value in each.outputs)


def _check(schedule: Schedule, memory: int | None) -> None:
    """Raise, naming the operator, unless every stage fits into the part of memory that is for tiles."""
    if memory is None or schedule.memory is None:
        return
    problems: list[tuple[int, Stage]] = []
    for stage in schedule.stages:
        need = need_of(stage, schedule.backward)
        if need > memory:
            problems.append((need, stage))
    if problems:
        need, stage = max(problems, key=lambda pair: pair[0])
        need = int(need * schedule.memory / memory) + 1
        reason = f", because it is computed whole ({stage.whole.operator.reason})" if stage.whole is not None else ""  # type: ignore[union-attr]
        raise UnsupportedError(
            f"{schedule.graph.name}: `memory` (={schedule.memory:,} bytes) is too little: {stage.name} needs {need:,} "
            f"bytes{reason}.\n  fix: memory={need:,} or more."
        )


def need_of(stage: Stage, backward: bool) -> int:
    """The bytes that computing a stage takes, a tile at a time or whole."""
    return footprint(stage, None, backward) if stage.whole is not None else peak_of(stage, backward)


def stage_footprint(stage: Stage, backward: bool) -> tuple[int, Shape, int, float]:
    """What a plan says of a stage: the bytes that a tile holds, a tile's shape, how many there are, and the work."""
    if stage.whole is not None:
        return footprint(stage, None, backward), stage.shape, 1, 1.0
    peak = peak_of(stage, backward)
    tile = middle(stage.shape, stage.counts).shape
    work = work_of(stage, stage.counts) / max(1.0, stage.least_flops)
    return peak, tile, count_of(stage, stage.counts), max(1.0, work)
