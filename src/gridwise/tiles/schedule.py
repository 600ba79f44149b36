"""The schedule: which values are stored, and into how many tiles each stage is cut, so that a tile fits into memory.

A value is stored if

    it leaves the graph, or an operator that is computed whole makes or reads it;
    an operator needs much more of it than its tile's share: keys and values of an attention, a dim that is transformed;
    several stages use it, and it costs more to compute again than a few operations on one stored value;
    tiles of a stage would otherwise compute much of their overlaps again.

Then each stage is cut, along the dim that costs the least extra work, until what a tile holds fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from ..costs.convolutions import SMALL as SMALL_FOR_ONEDNN
from ..errors import UnsupportedError
from ..grid import Box, Shape
from ..operators.on_boxes import Local
from .arrays import runs_of
from .cone import Stage, cuts_of, is_collecting, is_whole, stage_of, whole_stage
from .footprint import footprint
from .graph import GlobalValue, Operation, OperatorGraph

SHARE_ON_CPU, SHARE_ON_DEVICE = 0.45, 0.9
"""The part of the memory that is planned for tiles; the rest is for gaps between what the allocator keeps."""
HEAVY = 16.0
"""Operations per element from which computing a value again costs more than storing it."""
WIDE = 0.9
"""The share of an input that an operator needs for a quarter of its output from which on that input is stored."""
LARGER = 16
"""How many times larger than an input an output must be for the input to be stored."""
AGAIN = 1.12
"""The most work of a stage, over that of computing everything once."""
NOMINAL = 4
"""Into how many parts a dim is cut to see what operators need."""
LITTLE = 1 << 16
"""Bytes up to which a value is not worth considering: it is read whole."""


@dataclass
class Schedule:
    """Stages in the order in which they run."""

    graph: OperatorGraph
    stages: list[Stage]
    memory: int | None
    """The bytes that a tile may hold; None: no limit."""
    backward: bool

    @cached_property
    def last_read(self) -> list[list[GlobalValue]]:
        """For each stage, the stored values that no later stage reads."""
        kept_to_the_end = {*self.graph.outputs, *(v for _, v in self.graph.writes)}
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
        most = max(self.stored, default=0)
        if not self.backward:
            return most
        return most + 2 * max((root.nbytes for stage in self.stages for root in stage.roots), default=0)

    @property
    def tiles(self) -> int:
        """How many tiles there are in forward, wholes included."""
        return sum(_count(stage, stage.counts) for stage in self.stages)

    @property
    def tiles_back(self) -> int:
        return sum(_count(stage, stage.counts_back) for stage in self.stages if stage.requires_grad)


def _count(stage: Stage, counts: Sequence[int]) -> int:
    if stage.whole is not None:
        return 1
    return prod(len(cuts_of(n, c)) - 1 for n, c in zip(stage.shape, counts, strict=True))


def scheduled(graph: OperatorGraph, memory: int | None, backward: bool, tile: Shape | None = None) -> Schedule:
    """The schedule of a graph whose tiles hold at most `memory` bytes, or are at most `tile` along the last dims.

    Raises
    ------
    UnsupportedError : if an operator needs more; it is named, with the bytes that would do
    """
    asked, device = memory, next((v.spec.device for v in graph.values()), torch.device("cpu"))
    memory = None if memory is None else int(memory * (SHARE_ON_CPU if device.type == "cpu" else SHARE_ON_DEVICE))
    kept = _forced(graph)
    kept |= _worth_keeping(graph, kept)
    while True:
        stages = _stages(graph, kept)
        split = False
        for stage in stages:
            if stage.whole is not None:
                continue
            _cut(stage, memory, backward, tile)
            new = _to_keep_too(stage, memory, backward, tile, kept)
            if new is not None:
                kept.add(new)
                split = True
        if not split:
            break
    schedule = Schedule(graph, stages, asked, backward)
    _check(schedule, memory)
    return schedule


# Which values are stored


def _forced(graph: OperatorGraph) -> set[GlobalValue]:
    """Sources, outputs, what operators that are no local ones make, and what those that are computed whole read."""
    kept = {*graph.inputs.values(), *graph.fixed, *(v for v in graph.outputs), *(new for _, new in graph.writes)}
    kept |= _of_parameters(graph)
    for operation in graph.operations:
        if not operation.is_local:
            kept.update(operation.outputs)
        if is_whole(operation):
            kept.update(operation.inputs)
        elif operation.is_local:
            kept.update(_widely_needed(operation))
    return kept


def _of_parameters(graph: OperatorGraph) -> set[GlobalValue]:
    """Values computed from parameters, buffers and constants only, that something with an input uses: read whole."""
    found: set[GlobalValue] = set(graph.fixed)
    used: set[GlobalValue] = set()
    for operation in graph.operations:
        if operation.inputs and all(value in found for value in operation.inputs):
            found.update(operation.outputs)
        else:
            used.update(value for value in operation.inputs if value in found)
    return used


def _widely_needed(operation: Operation) -> list[GlobalValue]:
    """The inputs of which a tile needs much more than its share, or from which something much larger is made."""
    out = operation.outputs[0]
    candidates = [v for v in operation.inputs if v.source is None]
    if not candidates or not prod(out.shape):
        return []
    found = [v for v in candidates if v.nbytes * LARGER <= out.nbytes]
    whole = operation.needs(Box.of_shape(out.shape))
    for d in _free_dims(operation):
        box = _middle(out.shape, [NOMINAL if e == d else 1 for e in range(len(out.shape))])
        for value, need, most in zip(operation.inputs, operation.needs(box), whole, strict=True):
            if value in candidates and value.nbytes > LITTLE and need.volume > WIDE * most.volume:
                found.append(value)
    return found


def _free_dims(operation: Operation) -> set[int]:
    """The dims along which cutting the output cuts what is needed of the largest input."""
    shape = operation.outputs[0].shape
    whole = operation.needs(Box.of_shape(shape))
    largest = max(range(len(whole)), key=lambda i: whole[i].volume)
    found = set()
    for d, n in enumerate(shape):
        if n < 2:
            continue
        half = operation.needs(_middle(shape, [2 if e == d else 1 for e in range(len(shape))]))[largest]
        if half.volume < 0.9 * whole[largest].volume:
            found.add(d)
    return found


def _worth_keeping(graph: OperatorGraph, forced: set[GlobalValue]) -> set[GlobalValue]:
    """Values that several stages would otherwise compute again."""
    kept = set(forced)
    for _ in range(4):
        costs = _costs(graph, kept)
        again = _used_by_several(graph, forced, costs)
        if forced | again == kept:
            break
        kept = forced | again
    return kept


@dataclass
class _Cost:
    """What computing a value from stored ones takes."""

    flops: float
    reads: frozenset[GlobalValue]


def _costs(graph: OperatorGraph, kept: set[GlobalValue]) -> dict[GlobalValue, _Cost]:
    costs: dict[GlobalValue, _Cost] = {}
    for operation in graph.operations:
        flops, reads = operation.flops, frozenset[GlobalValue]()
        for value in operation.inputs:
            if value in kept:
                if value.nbytes > LITTLE and not value.is_fixed:
                    reads |= {value}
            else:
                flops += costs[value].flops
                reads |= costs[value].reads
        for value in operation.outputs:
            costs[value] = _Cost(flops, reads)
    return costs


def _used_by_several(
    graph: OperatorGraph, forced: set[GlobalValue], costs: Mapping[GlobalValue, _Cost]
) -> set[GlobalValue]:
    """Which values to store, decided from the outputs backwards, where it is known which stages use a value."""
    users: dict[GlobalValue, set[object]] = {}
    found: set[GlobalValue] = set()
    for operation in reversed(graph.operations):
        stages: set[object] = set()
        if operation.is_local:
            for value in operation.outputs:
                if value in forced or value in found:
                    stages.add(value)
                    continue
                of_value = users.get(value, set())
                cost = costs[value]
                heavy = cost.flops > HEAVY * max(1, prod(value.shape))
                if len(of_value) > 1 and (heavy or len(cost.reads) > 1) and value.nbytes > LITTLE:
                    found.add(value)
                    stages.add(value)
                else:
                    stages |= of_value
        else:
            stages.add(operation)
        for value in operation.inputs:
            users.setdefault(value, set()).update(stages)
    return found


def _stages(graph: OperatorGraph, kept: set[GlobalValue]) -> list[Stage]:
    """One stage for each stored value; what collects statistics of a stored value does so while it is made."""
    needed = _needed(graph)
    collects: dict[GlobalValue, list[Operation]] = {}
    alone: list[Operation] = []
    for operation in graph.operations:
        if is_collecting(operation) and operation in needed:
            first = operation.inputs[0]
            others = [v for v in operation.inputs[1:] if v.source is None]
            made_here = first in kept and first.by is not None and first.by.is_local and not others
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
    left = [value.by for value in (*graph.outputs, *(new for _, new in graph.writes))]
    while left:
        operation = left.pop()
        if operation is not None and operation not in found:
            found.add(operation)
            left += [value.by for value in operation.inputs]
    return found


def _reads_its_box(operation: Operation) -> bool:
    box = _middle(operation.shape, [2] * len(operation.shape))
    return operation.needs(box)[0] == box


def _to_keep_too(
    stage: Stage, memory: int | None, backward: bool, tile: Shape | None, kept: set[GlobalValue]
) -> GlobalValue | None:
    """A value to store as well, if the tiles of a stage do too much work again, or do not fit."""
    fits = (memory is None or _peak(stage, backward) <= memory) and not _exceeds(stage, tile)
    counts = stage.counts_back if backward else stage.counts
    if fits and _work(stage, counts) <= AGAIN * max(1.0, stage.least_flops):
        return None
    done = 0.0
    ends = {*stage.roots, *(v for each in stage.collects for v in each.inputs)}
    candidates: list[tuple[float, GlobalValue]] = []
    total = max(1.0, stage.least_flops)
    for operation in stage.operations:
        done += operation.flops
        for value in operation.outputs:
            if value not in kept and value not in ends and value.nbytes > LITTLE:
                is_heavy = operation.operator.flops >= HEAVY or not fits
                if is_heavy:
                    candidates.append((abs(done / total - 0.5) + 0.1 * value.nbytes / max(1, _bytes(stage)), value))
    return min(candidates, key=lambda pair: pair[0])[1] if candidates else None


def _bytes(stage: Stage) -> int:
    return max(value.nbytes for each in stage.operations for value in each.outputs)


# How stages are cut


def _middle(shape: Shape, counts: Sequence[int]) -> Box:
    """The tile in the middle."""
    ends = []
    for n, count in zip(shape, counts, strict=True):
        cuts = cuts_of(n, count)
        place = min((len(cuts) - 1) // 2, max(0, len(cuts) - 2))
        ends.append((cuts[place], cuts[place + 1]))
    return Box.of_intervals(ends)


def _work(stage: Stage, counts: Sequence[int]) -> float:
    box = _middle(stage.shape, counts)
    return stage.flops(stage.hulls(box)) * _count(stage, counts)


def _largest(stage: Stage, counts: Sequence[int], backward: bool) -> int:
    return footprint(stage, _middle(stage.shape, counts), backward)


def _peak(stage: Stage, backward: bool) -> int:
    """The bytes that a tile holds, forward and, if wanted, backward."""
    peak = _largest(stage, stage.counts, False)
    if backward and stage.requires_grad:
        peak = max(peak, _largest(stage, stage.counts_back, True))
    return peak


def _cut(stage: Stage, memory: int | None, backward: bool, tile: Shape | None) -> None:
    """Decide the number of tiles along each dim."""
    start = _counts_of_tile(stage, tile)
    stage.counts = _fitting(stage, memory, start, lambda counts: _largest(stage, counts, False))
    stage.counts_back = stage.counts
    if backward and stage.requires_grad:
        stage.counts_back = _fitting(stage, memory, stage.counts, lambda counts: _largest(stage, counts, True))


def _counts_of_tile(stage: Stage, tile: Shape | None) -> tuple[int, ...]:
    """As many tiles along the last dims as `tile` says, where that leaves less to read for each."""
    shape = stage.shape
    counts = [1] * len(shape)
    if tile is None or len(shape) <= len(tile) or all(value.is_fixed for value in stage.reads):
        return tuple(counts)  # what is made of parameters alone is small
    whole = _bytes_read(stage, counts)
    for d, size in zip(range(len(shape) - len(tile), len(shape)), tile, strict=True):
        count = -(-shape[d] // size)
        alone = tuple(count if e == d else 1 for e in range(len(shape)))
        if count > 1 and (not whole or _bytes_read(stage, alone) < 0.9 * whole):
            counts[d] = count
    return tuple(counts)


def _exceeds(stage: Stage, tile: Shape | None) -> bool:
    """Whether a tile computes much more of a value at once than `tile`, though that might be stored."""
    if tile is None:
        return False
    hulls = stage.hulls(_middle(stage.shape, stage.counts))
    for operation in stage.operations[:-1]:
        shape = hulls[operation.outputs[0]].shape
        if len(shape) > len(tile) and all(n > 2 * t + HALO for n, t in zip(shape[-len(tile) :], tile, strict=True)):
            return True
    return False


HALO = 8
"""How much larger than twice a tile what it is computed from may be."""


def _fitting(
    stage: Stage, memory: int | None, counts: tuple[int, ...], size: Callable[[tuple[int, ...]], int]
) -> tuple[int, ...]:
    """The counts, increased along the cheapest dims until a tile fits; as far as that goes."""
    if memory is None:
        return counts
    now = size(counts)
    while now > memory:
        found = _finer_ones(stage, counts, now, size, only_less_to_read=True)
        found = found or _finer_ones(stage, counts, now, size, only_less_to_read=False)
        if not found:
            return counts
        _, now, counts = min(found)
    return counts


def _finer_ones(
    stage: Stage, counts: tuple[int, ...], now: int, size: Callable[[tuple[int, ...]], int], only_less_to_read: bool
) -> list[tuple[float, int, tuple[int, ...]]]:
    """What one more cut along each dim costs, and how much a tile then holds.

    Cutting output channels makes a convolution read the same again, and less efficient: a last resort.
    """
    found: list[tuple[float, int, tuple[int, ...]]] = []
    before = _bytes_read(stage, counts)
    for d, n in enumerate(stage.shape):
        finer = _finer(n, counts[d])
        if finer is None:
            continue
        trial = (*counts[:d], finer, *counts[d + 1 :])
        then = size(trial)
        if then < 0.97 * now and (not only_less_to_read or _bytes_read(stage, trial) < 0.95 * before or not before):
            gain = 1 - then / now
            found.append((_cost(stage, trial) / gain**0.5, then, trial))
    return found


def _bytes_read(stage: Stage, counts: Sequence[int]) -> int:
    """What the tile in the middle reads."""
    hulls = stage.hulls(_middle(stage.shape, counts))
    return sum(hulls[v].volume * v.spec.dtype.itemsize for v in stage.reads if not v.is_fixed)


def _finer(extent: int, count: int) -> int | None:
    """A larger number of parts, whose size is smaller; about twice as many."""
    size = -(-extent // count)
    return None if size == 1 else -(-extent // (-(-size // 2)))


def _cost(stage: Stage, counts: tuple[int, ...]) -> float:
    """The work of all tiles, with what each costs besides."""
    box = _middle(stage.shape, counts)
    hulls = stage.hulls(box)
    work = sum(each.operator.flops * hulls[each.outputs[0]].volume * slowness(each, hulls) for each in stage.operations)
    moved = [(root, box) for root in stage.roots] + [(v, hulls[v]) for v in stage.reads if not v.is_fixed]
    for value, part in moved:
        length = runs_of(value.shape, part)[1]
        work += PER_BYTE * part.volume * value.spec.dtype.itemsize + PER_RUN * part.volume / max(1, length)
    return (work + PER_STEP * len(stage.operations)) * _count(stage, counts)


PER_STEP, PER_BYTE, PER_RUN = 2e5, 6.0, 4e3
"""What an operator of a tile costs besides its work, a byte that is moved, and a run of bytes; in operations."""


def slowness(operation: Operation, hulls: Mapping[GlobalValue, Box]) -> float:
    """How much slower torch is for small inputs of a convolution, which it does not give to oneDNN."""
    if not operation.name.startswith(("conv1d", "conv2d", "conv3d")) or not isinstance(operation.operator, Local):
        return 1.0
    x = hulls[operation.inputs[0]].shape
    is_small = len(x) > 3 and x[0] == 1 and prod(x[:4]) <= SMALL_FOR_ONEDNN
    return 8.0 if is_small and operation.inputs[0].spec.device.type == "cpu" else 1.0


def _check(schedule: Schedule, memory: int | None) -> None:
    """Raise, naming the operator, unless every stage fits into the part of memory that is for tiles."""
    if memory is None or schedule.memory is None:
        return
    problems: list[tuple[int, Stage]] = []
    for stage in schedule.stages:
        whole = stage.whole is not None
        need = footprint(stage, None, schedule.backward) if whole else _peak(stage, schedule.backward)
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


def stage_footprint(stage: Stage, backward: bool) -> tuple[int, Shape, int, float]:
    """What a plan says of a stage: the bytes that a tile holds, a tile's shape, how many there are, and the work."""
    if stage.whole is not None:
        return footprint(stage, None, backward), stage.shape, 1, 1.0
    peak = _peak(stage, backward)
    tile = _middle(stage.shape, stage.counts).shape
    work = _work(stage, stage.counts) / max(1.0, stage.least_flops)
    return peak, tile, _count(stage, stage.counts), max(1.0, work)
