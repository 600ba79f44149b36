"""How stages are cut into tiles: along the dims that cost the least extra work, until what a tile holds fits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from mmap import PAGESIZE

from ..costs.convolutions import is_large
from ..grid import Box, Shape
from ..operators.on_boxes import Local
from .arrays import runs_of
from .cone import Stage, boxes_of, cuts_of
from .footprint import footprint
from .graph import GlobalValue, Operation


def middle(shape: Shape, counts: Sequence[int]) -> Box:
    """The tile in the middle."""
    ends = []
    for n, count in zip(shape, counts, strict=True):
        cuts = cuts_of(n, count)
        place = (len(cuts) - 2) // 2  # never the last of several, which may be smaller
        ends.append((cuts[place], cuts[place + 1]))
    return Box.of_intervals(ends)


def work_of(stage: Stage, counts: Sequence[int]) -> float:
    box = middle(stage.shape, counts)
    return stage.flops(stage.hulls(box)) * count_of(stage, counts)


def largest(stage: Stage, counts: Sequence[int], backward: bool) -> int:
    """The bytes that a tile holds: the one in the middle, or one that is known to need more."""
    boxes = [middle(stage.shape, counts), *(_at(place, stage.shape, counts) for place in stage.needy)]
    return max(footprint(stage, box, backward) for box in boxes)


def _at(place: Sequence[int], shape: Shape, counts: Sequence[int]) -> Box:
    """The tile around a place."""
    ends = []
    for row, n, count in zip(place, shape, counts, strict=True):
        cuts = cuts_of(n, count)
        part = bisect_right(cuts, row) - 1
        ends.append((cuts[part], cuts[part + 1]))
    return Box.of_intervals(ends)


def _neediest(stage: Stage, counts: Sequence[int], backward: bool) -> Box:
    """The tile that holds most; of many tiles, as far as looking along one dim after the other, twice, finds it."""
    if prod(counts) <= FEW:
        return max(boxes_of(stage.shape, counts), key=lambda each: footprint(stage, each, backward))
    box = middle(stage.shape, counts)
    for d in (*range(len(counts)), *range(len(counts))):
        if counts[d] > 1:
            parts = pairwise(cuts_of(stage.shape[d], counts[d]))
            ends = list(zip(box.start, box.stop, strict=True))
            boxes = [Box.of_intervals([*ends[:d], part, *ends[d + 1 :]]) for part in parts]
            box = max(boxes, key=lambda each: footprint(stage, each, backward))
    return box


IN_VAIN = 64
"""If needy tiles ask for so many times more tiles, or are so many, they are let be: cutting hardly makes them smaller."""
FEW = 64
"""Up to so many tiles are all looked at."""


def peak_of(stage: Stage, backward: bool) -> int:
    """The bytes that a tile holds, forward and, if wanted, backward."""
    peak = largest(stage, stage.counts, False)
    if backward and stage.requires_grad:
        peak = max(peak, largest(stage, stage.counts_back, True))
    return peak


def cut(stage: Stage, memory: int | None, backward: bool, tile: Shape | None) -> None:
    """Decide the number of tiles along each dim."""
    start = _counts_of_tile(stage, tile)
    stage.counts = stage.counts_back = _cut(stage, memory, start, False)
    if backward and stage.requires_grad:
        stage.counts_back = _cut(stage, memory, start, True)


def _cut(stage: Stage, memory: int | None, start: tuple[int, ...], backward: bool) -> tuple[int, ...]:
    first, known = None, len(stage.needy)
    while True:
        counts = _fitting(stage, memory, start, backward)
        first = first or counts
        if memory is None or largest(stage, counts, backward) > memory:
            return counts  # as far as it goes
        if prod(counts) > IN_VAIN * prod(first) or len(stage.needy) > IN_VAIN:
            del stage.needy[known:]
            return first
        worst = _neediest(stage, counts, backward)
        if footprint(stage, worst, backward) <= memory:
            return counts
        stage.needy.append(worst.start)


def _counts_of_tile(stage: Stage, tile: Shape | None) -> tuple[int, ...]:
    """As many tiles along the last dims as `tile` says, where that leaves less to read for each."""
    shape = stage.shape
    counts = [1] * len(shape)
    if tile is None or len(shape) <= len(tile) or all(value.of_parameters for value in stage.reads):
        return tuple(counts)  # what is made of parameters alone is small
    whole = _bytes_read(stage, counts)
    for d, size in zip(range(len(shape) - len(tile), len(shape)), tile, strict=True):
        count = -(-shape[d] // size)
        alone = tuple(count if e == d else 1 for e in range(len(shape)))
        if count > 1 and (not whole or _bytes_read(stage, alone) < 0.9 * whole):
            counts[d] = count
    return tuple(counts)


def exceeds(stage: Stage, tile: Shape | None) -> bool:
    """Whether a tile computes much more of a value at once than `tile`, though that might be stored."""
    if tile is None:
        return False
    hulls = stage.hulls(middle(stage.shape, stage.counts))
    for operation in stage.operations[:-1]:
        shape = hulls[operation.outputs[0]].shape
        if len(shape) > len(tile) and all(n > 2 * t + HALO for n, t in zip(shape[-len(tile) :], tile, strict=True)):
            return True
    return False


HALO = 8
"""How much larger than twice a tile what it is computed from may be."""


def _fitting(stage: Stage, memory: int | None, counts: tuple[int, ...], backward: bool) -> tuple[int, ...]:
    """The counts, increased along the cheapest dims until a tile fits; as far as that goes."""
    if memory is None:
        return counts
    now = largest(stage, counts, backward)
    while now > memory:
        found = _finer_ones(stage, counts, now, backward, only_less_to_read=True)
        found = found or _finer_ones(stage, counts, now, backward, only_less_to_read=False)
        if not found:
            return counts
        _, now, counts = min(found)
    return counts


def _finer_ones(
    stage: Stage, counts: tuple[int, ...], now: int, backward: bool, only_less_to_read: bool
) -> list[tuple[float, int, tuple[int, ...]]]:
    """What one more cut along each dim costs, and how much a tile then holds.

    Cutting output channels makes a convolution read the same again, and less efficient: a last resort.
    """
    found: list[tuple[float, int, tuple[int, ...]]] = []
    before = _bytes_read(stage, counts)
    for d, n in enumerate(stage.shape):
        finer: int | None = counts[d]
        for _ in range(MOST_HALVINGS):
            finer = None if finer is None else _finer(n, finer)
            if finer is None:
                break
            trial = (*counts[:d], finer, *counts[d + 1 :])
            then = largest(stage, trial, backward)
            if then < 0.97 * now:
                if not only_less_to_read or _bytes_read(stage, trial) < 0.95 * before or not before:
                    gain = 1 - then / now
                    found.append((_cost(stage, trial, backward) / gain**0.5, then, trial))
                break
    return found


MOST_HALVINGS = 5
"""How often a tile is halved in search of one that holds less: torch unrolls the windows of smaller ones, which is more."""


def _bytes_read(stage: Stage, counts: Sequence[int]) -> int:
    """What the tile in the middle reads."""
    hulls = stage.hulls(middle(stage.shape, counts))
    return sum(hulls[v].volume * v.spec.dtype.itemsize for v in stage.reads if not v.is_fixed)


def _finer(extent: int, count: int) -> int | None:
    """A larger number of parts, whose size is smaller; about twice as many."""
    size = -(-extent // count)
    return None if size == 1 else -(-extent // (-(-size // 2)))


def _cost(stage: Stage, counts: tuple[int, ...], backward: bool) -> float:
    """The work of all tiles, with what each costs besides."""
    box = middle(stage.shape, counts)
    hulls = stage.hulls(box)
    work = 0.0
    for each in stage.operations:
        work += each.operator.flops * hulls[each.outputs[0]].volume * slowness(each, hulls, backward)
    for value, part in [(root, box) for root in stage.roots] + [(v, hulls[v]) for v in stage.reads if not v.is_fixed]:
        work += _moving(value, part)
    return (work + PER_STEP * len(stage.operations)) * count_of(stage, counts)


def _moving(value: GlobalValue, part: Box) -> float:
    """The cost of reading or writing a box of what is stored, which may lie in a file."""
    size = value.spec.dtype.itemsize
    runs = part.volume / max(1, runs_of(value.shape, part)[1])
    if value.spec.device.type != "cpu":
        return PER_BYTE * part.volume * size + PER_ROW * runs
    return PER_PAGE * pages_of(value.shape, part, size) + PER_RUN * runs


def pages_of(shape: Shape, box: Box, itemsize: int) -> int:
    """In how many pages of a file a box lies: the gaps between its rows count, where they are shorter than a page."""
    length, pitch, count = itemsize, itemsize, 1
    for n, extent in zip(reversed(box.shape), reversed(shape), strict=True):
        if pitch - length < PAGESIZE:
            length += (n - 1) * pitch
        else:
            count *= n
        pitch *= extent
    return count * (length // PAGESIZE + 1)


PER_STEP, PER_BYTE, PER_ROW, PER_PAGE, PER_RUN = 2e5, 6.0, 4e3, 1e5, 1e4
"""What an operator of a tile costs besides its work; a byte, and a row, that goes to a device; a page of a file, and a run of
bytes in it."""


def slowness(operation: Operation, hulls: Mapping[GlobalValue, Box], backward: bool) -> float:
    """How much slower torch is for small inputs of a convolution, which it does not give to oneDNN in backward."""
    if not operation.name.startswith(("conv1d", "conv2d", "conv3d")) or not isinstance(operation.operator, Local):
        return 1.0
    given = operation.inputs[0]
    if given.spec.device.type != "cpu" or len(given.shape) < 4 or is_large(hulls[given].shape):
        return 1.0
    return 8.0 if backward or not is_large(given.shape) else 1.0


def count_of(stage: Stage, counts: Sequence[int]) -> int:
    if stage.whole is not None:
        return 1
    return prod(len(cuts_of(n, c)) - 1 for n, c in zip(stage.shape, counts, strict=True))
