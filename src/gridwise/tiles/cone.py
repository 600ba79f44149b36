"""A stage: what is computed tile by tile in one pass, from stored values to a stored value, or to a collected result.

    stored ──► [ operations: each once per tile, on the hull of all that its tile needs of it ] ──► stored, collected

For a tile, needs are followed from its box backwards. The hull of a value that several operations use is that of all
their needs; values on it are computed once per tile, and again in the overlaps of tiles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product

from ..grid import Box, Cuts, Shape
from ..operators.on_boxes import Collecting
from .autograd_functions import OwnBackward
from .graph import GlobalValue, Operation, Whole


@dataclass(frozen=True)
class Argument:
    """An input of a step: the part `slices` of what is at hand of a value, or all of it; or nothing of it."""

    value: GlobalValue
    slices: tuple[slice, ...] | None = None
    empty: Shape | None = None
    """The shape of what is needed, if that has no elements."""


@dataclass(frozen=True)
class TileStep:
    """One operation on the hull of what a tile needs."""

    operation: Operation
    box: Box
    arguments: tuple[Argument, ...]
    frees: tuple[GlobalValue, ...]
    """Values that nothing later in the tile needs."""


@dataclass(frozen=True)
class Tile:
    """All that one tile reads and computes."""

    box: Box
    reads: tuple[tuple[GlobalValue, Box], ...]
    steps: tuple[TileStep, ...]
    collected: tuple[tuple[Operation, tuple[Argument, ...]], ...]
    """The inputs of each collecting operation for this tile's box."""


@dataclass(eq=False)
class Stage:
    """Values that are computed in one pass."""

    shape: Shape
    """What is cut into tiles."""
    roots: tuple[GlobalValue, ...]
    """The values that are stored; all of this shape."""
    collects: tuple[Operation, ...]
    operations: tuple[Operation, ...]
    """What computes them, in order."""
    reads: tuple[GlobalValue, ...]
    """What is read: stored values, inputs and parameters."""
    whole: Operation | None = None
    """The operation, if it is one that is computed whole."""
    counts: tuple[int, ...] = ()
    """How many tiles there are along each dim."""
    counts_back: tuple[int, ...] = ()
    """The same in backward."""
    needy: list[tuple[int, ...]] = field(default_factory=list)
    """Places whose tiles were seen to need more than others: where rows wrap around, or two windows meet."""
    _tiles: dict[tuple[int, ...], list[Tile]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The operation at its end, for messages."""
        last = self.whole or (self.roots[0].by if self.roots else self.collects[0])
        assert last is not None
        return last.name

    @property
    def own_backward(self) -> OwnBackward | None:
        """Of an output of a `torch.autograd.Function`."""
        return self.roots[0].by.backward if self.roots and self.roots[0].by is not None else None

    @property
    def requires_grad(self) -> bool:
        """Whether tiles of it are pulled back."""
        if self.own_backward is not None:
            return False
        made = (*self.roots, *(value for each in self.collects for value in each.outputs))
        return any(value.requires_grad for value in made)

    def tiles(self, counts: Sequence[int]) -> list[Tile]:
        key = tuple(counts)
        if key not in self._tiles:
            self._tiles[key] = [self.tile(box) for box in boxes_of(self.shape, key)]
        return self._tiles[key]

    def hulls(self, box: Box) -> dict[GlobalValue, Box]:
        """What a tile needs of each value."""
        found: dict[GlobalValue, Box] = {}
        for root in self.roots:
            _need(found, root, box)
        for each in self.collects:
            for value, need in zip(each.inputs, each.needs(box), strict=True):
                _need(found, value, need)
        for operation in reversed(self.operations):
            own = _hull_of(found, operation)
            found.update(dict.fromkeys(operation.outputs, own))  # it makes all of them on that box, needed or not
            if own.volume or not own.start:
                for value, need in zip(operation.inputs, operation.needs(own), strict=True):
                    _need(found, value, need)
            else:
                for value in operation.inputs:
                    found.setdefault(value, nothing(value))
        return found

    def tile(self, box: Box) -> Tile:
        found = self.hulls(box)
        needed = {*self.roots, *(value for each in self.collects for value in each.inputs)}
        later: set[GlobalValue] = set(needed)
        steps: list[TileStep] = []
        for operation in reversed(self.operations):
            own = _hull_of(found, operation)
            arguments = self._arguments(operation, own, found)
            used = {*operation.inputs, *operation.outputs}
            frees = tuple(value for value in used if value not in later)
            later |= used
            steps.append(TileStep(operation, own, arguments, frees))
        collected = tuple((each, self._arguments(each, box, found)) for each in self.collects)
        reads = tuple((value, found[value]) for value in self.reads)
        return Tile(box, reads, tuple(reversed(steps)), collected)

    def _arguments(self, operation: Operation, box: Box, found: dict[GlobalValue, Box]) -> tuple[Argument, ...]:
        if not box.volume and box.start:
            return tuple(Argument(value, None, nothing(value).shape) for value in operation.inputs)
        needs = operation.needs(box)
        return tuple(_part(value, need, found[value]) for value, need in zip(operation.inputs, needs, strict=True))

    def flops(self, hulls: dict[GlobalValue, Box]) -> float:
        """About how many operations a tile takes."""
        return sum(each.operator.flops * _hull_of(hulls, each).volume for each in self.operations)

    @cached_property
    def least_flops(self) -> float:
        """The same for the whole stage, with nothing computed twice."""
        return sum(each.flops for each in self.operations)


def stage_of(roots: Iterable[GlobalValue], collects: Iterable[Operation], kept: Collection[GlobalValue]) -> Stage:
    """The stage that computes these from values that are `kept`."""
    roots, collects = tuple(roots), tuple(collects)
    operations: dict[Operation, None] = {}
    reads: dict[GlobalValue, None] = {}
    left = [root.by for root in roots]
    left += [value.by for each in collects for value in each.inputs if value not in kept and value not in roots]
    for each in collects:
        reads.update(dict.fromkeys(v for v in each.inputs if v in kept and v not in roots))
    while left:
        operation = left.pop()
        if operation is None or operation in operations:
            continue
        operations[operation] = None
        for value in operation.inputs:
            if value in kept:
                reads[value] = None
            else:
                left.append(value.by)
    ordered = tuple(sorted(operations, key=lambda each: each.number))
    shape = roots[0].shape if roots else collects[0].shape
    return Stage(shape, roots, collects, ordered, tuple(reads))


def whole_stage(operation: Operation) -> Stage:
    return Stage(operation.shape, operation.outputs, (), (), tuple(dict.fromkeys(operation.inputs)), operation)


def cuts_of(extent: int, count: int) -> Cuts:
    """Cuts into `count` parts of one size, the last perhaps smaller, so that most tiles are alike."""
    size = -(-extent // max(1, count))
    return (*range(0, extent, size), extent) if extent else (0, 0)


def boxes_of(shape: Shape, counts: Sequence[int]) -> Iterator[Box]:
    lines = []
    for extent, count in zip(shape, counts, strict=True):
        cuts = cuts_of(extent, count)
        lines.append(list(pairwise(cuts)))
    return (Box.of_intervals(each) for each in product(*lines))


def nothing(value: GlobalValue) -> Box:
    zeros = (0,) * len(value.shape)
    return Box(zeros, zeros)


def _need(found: dict[GlobalValue, Box], value: GlobalValue, box: Box) -> None:
    """Add a need of a value to those that are known."""
    known = found.get(value)
    found[value] = box if known is None else hull(known, box)


def hull(a: Box, b: Box) -> Box:
    """The smallest box around both; an empty one adds nothing."""
    if a.start and not a.volume:
        return b
    if b.start and not b.volume:
        return a
    return Box(tuple(map(min, a.start, b.start)), tuple(map(max, a.stop, b.stop)))


def _hull_of(found: dict[GlobalValue, Box], operation: Operation) -> Box:
    """The box on which an operation is computed: the hull of what is needed of its outputs."""
    boxes = [found[value] for value in operation.outputs if value in found]
    own = boxes[0]
    for each in boxes[1:]:
        own = hull(own, each)
    return own


def _part(value: GlobalValue, need: Box, at_hand: Box) -> Argument:
    if need.start and not need.volume:
        return Argument(value, None, need.shape)
    if need == at_hand:
        return Argument(value)
    return Argument(value, need.relative_to(at_hand).slices)


def is_collecting(operation: Operation) -> bool:
    return isinstance(operation.operator, Collecting)


def is_whole(operation: Operation) -> bool:
    return isinstance(operation.operator, Whole)
