"""Running a schedule: stage by stage, tile by tile; and backward, in the opposite order.

    forward     read boxes ──► compute ──► write a box, add to what is collected
    backward    read boxes ──► compute again ──► pull the cotangent's box back ──► add to the cotangents of what was read

Tiles compute their overlaps several times, but each has the cotangent of its own, disjoint outputs, so sums are exact. The
cotangent of something collected is small, and enters the tiles of the stage that collects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import GridwiseError
from ..operators.on_boxes import Collecting, Local
from ..operators.random.random_stream import RandomStream
from .arrays import InMemory, StoredArray, made
from .cone import Argument, Stage, Tile, TileStep
from .graph import GlobalValue, Operation
from .heap import Heap
from .schedule import Schedule


@dataclass
class Store:
    """Where arrays lie that cross stages."""

    device: torch.device
    """What computes."""
    folder: Path | None = None
    """None: in memory."""

    def new(self, value: GlobalValue, zeros: bool = False) -> StoredArray:
        small = value.nbytes <= SMALL
        if small and self.device.type != "cpu":
            return InMemory(torch.zeros(value.shape, dtype=value.spec.dtype, device=self.device))
        folder = None if small else self.folder
        return made(value.shape, value.spec.dtype, folder, self.device.type == "cuda", zeros)


SMALL = 1 << 20
"""Arrays of up to this many bytes are kept where they are computed."""
Progress = Callable[[int, str], None]
"""Called with the number of tiles that are done, and what is computed."""


@dataclass
class Execution:
    """One call: the arrays that it reads and makes."""

    schedule: Schedule
    store: Store
    arrays: dict[GlobalValue, StoredArray]
    """Those of inputs, parameters, buffers, constants and of the outputs that have a target; then all others."""
    stream: RandomStream
    keeps: bool
    """Whether arrays are kept for backward."""
    progress: Progress | None = None
    states: dict[Operation, Any] = field(default_factory=dict)
    """The final states of collecting operations."""
    _done: int = 0

    def __post_init__(self) -> None:
        limit = self.schedule.memory
        if limit is not None:  # the results are the user's, and what is stored in memory was allowed for
            limit += sum(value.nbytes for value in self.schedule.graph.outputs)
            limit += self.schedule.stored_peak if self.store.folder is None else 0
        self._heap = Heap(limit, self.store.device)

    # Forward

    def forward(self) -> None:
        with torch.no_grad():
            for number, stage in enumerate(self.schedule.stages):
                with _named(stage):
                    self._run_stage(stage)
                if not self.keeps:
                    self._release(self.schedule.last_read[number])

    def _run_stage(self, stage: Stage) -> None:
        for root in stage.roots:
            if root not in self.arrays:
                self.arrays[root] = self.store.new(root)
        if stage.whole is not None:
            given = [self._read(value, None) for value in stage.whole.inputs]
            for root, y in zip(stage.roots, _several(self._computed(stage.whole, None, given)), strict=True):
                self.arrays[root].write(root.box, y)
            self._report(stage)
            return
        states: dict[Operation, Any] = {}
        for tile in stage.tiles(stage.counts):
            held = {value: self._read(value, box) for value, box in tile.reads}
            self._compute(tile, held)
            for root in stage.roots:
                self.arrays[root].write(tile.box, held[root])
            for operation, arguments in tile.collected:
                assert isinstance(operation.operator, Collecting)
                given = [_part(each, held) for each in arguments]
                with operation.casting():
                    states[operation] = operation.operator.add(states.get(operation), tile.box, *given)
            held.clear()
            self._report(stage)
        for operation in stage.collects:
            assert isinstance(operation.operator, Collecting)
            self.states[operation] = states[operation]
            for value, y in zip(operation.outputs, operation.operator.finish(states[operation]), strict=True):
                if value in self.arrays:
                    self.arrays[value].write(value.box, y.view(value.shape))
                else:
                    self.arrays[value] = InMemory(y.to(value.spec.dtype).view(value.shape))

    def _report(self, stage: Stage) -> None:
        self._done += 1
        if self.progress is not None:
            self.progress(self._done, stage.name)

    def _release(self, values: Sequence[GlobalValue]) -> None:
        for value in values:
            self.arrays.pop(value).release()

    def _read(self, value: GlobalValue, box: Any) -> Tensor:
        return self.arrays[value].read(value.box if box is None else box, self.store.device)

    # A tile

    def _compute(self, tile: Tile, held: dict[GlobalValue, Tensor], upto: int | None = None) -> None:
        """Run the steps of a tile on what is `held`, to which their results are added."""
        for step in tile.steps[:upto]:
            operation, box = step.operation, step.box
            if box.volume or not box.start:
                given = [_part(each, held) for each in step.arguments]
                self._heap.make_room(step.nbytes)
                results = _several(self._computed(operation, box, given))
                given.clear()
            else:
                results = [
                    torch.empty(box.shape, dtype=v.spec.dtype, device=self.store.device) for v in operation.outputs
                ]
            for value, y in zip(operation.outputs, results, strict=True):
                held[value] = y if value.requires_grad or not y.requires_grad else y.detach()
            if upto is None:
                for value in step.frees:
                    held.pop(value, None)

    def _computed(self, operation: Operation, box: Any, given: Sequence[Tensor]) -> Any:
        run = operation.operator.run  # type: ignore[union-attr]
        before: tuple[Any, ...] = () if box is None else (box,)
        if operation.draw:
            before = (self.stream.at(operation.draw), *before)
        if operation.autocast:
            with operation.casting():
                return run(*before, *given)
        return run(*before, *given)

    # Backward

    def backward(self, cotangents: Mapping[GlobalValue, Tensor], wanted: Sequence[GlobalValue]) -> list[Tensor | None]:
        """The gradients of the `wanted` inputs and parameters, from the cotangents of outputs."""
        self.cotangents: dict[GlobalValue, StoredArray] = {}
        self._done = 0
        for value, y in cotangents.items():
            if value.by is None:
                self._cotangent(value).add(value.box, y)
            else:
                self.cotangents[value] = _Given(y)
        self._wanted = set(wanted)
        for stage in reversed(self.schedule.stages):
            if stage.requires_grad and self._has_cotangent(stage):
                with _named(stage):
                    self._pull_back(stage)
            for value in (*stage.roots, *(y for each in stage.collects for y in each.outputs)):
                if value in self.cotangents:
                    self.cotangents.pop(value).release()
        found = [self.cotangents.pop(value) if value in self.cotangents else None for value in wanted]
        return [None if each is None else each.tensor for each in found]  # type: ignore[attr-defined]

    def _has_cotangent(self, stage: Stage) -> bool:
        made_here = (*stage.roots, *(y for each in stage.collects for y in each.outputs))
        return any(value in self.cotangents for value in made_here)

    def _cotangent(self, value: GlobalValue) -> StoredArray:
        """The array to which the cotangents of a value are added."""
        known = self.cotangents.get(value)
        if isinstance(known, _Given):
            new = self.store.new(value, zeros=True)
            new.write(value.box, known.given)
            known = self.cotangents[value] = new
        if known is None:
            if value.source is not None:
                where = self._tensor_of(value)
                known = InMemory(torch.zeros(value.shape, dtype=value.spec.dtype, device=where))
            else:
                known = self.store.new(value, zeros=True)
            self.cotangents[value] = known
        return known

    def _tensor_of(self, value: GlobalValue) -> torch.device:
        array = self.arrays[value]
        return array.tensor.device if isinstance(array, InMemory) and array.tensor is not None else self.store.device

    def _pull_back(self, stage: Stage) -> None:
        leaves = {
            value: self._read(value, None).detach().requires_grad_()
            for value in stage.reads
            if self._is_wanted(value) and (value.is_fixed or value.nbytes <= SMALL)
        }
        if stage.whole is not None:
            self._pull_back_whole(stage, leaves)
            return
        of_results = {
            each: [self._whole_cotangent(value) for value in each.outputs]
            for each in stage.collects
            if any(value in self.cotangents for value in each.outputs)
        }
        for tile in stage.tiles(stage.counts_back):
            self._pull_back_tile(stage, tile, leaves, of_results)
            self._report(stage)

    def _whole_cotangent(self, value: GlobalValue) -> Tensor | None:
        return self.cotangents[value].read(value.box, self.store.device) if value in self.cotangents else None

    def _is_wanted(self, value: GlobalValue) -> bool:
        return value.requires_grad and (value.source is None or value in self._wanted)

    def _pull_back_tile(
        self,
        stage: Stage,
        tile: Tile,
        leaves: Mapping[GlobalValue, Tensor],
        of_results: Mapping[Operation, Sequence[Tensor | None]],
    ) -> None:
        held: dict[GlobalValue, Tensor] = {}
        own: dict[GlobalValue, tuple[Any, Tensor]] = {}
        with torch.enable_grad():
            for value, box in tile.reads:
                if value in leaves:
                    held[value] = leaves[value][box.slices]
                    continue
                x = self._read(value, box)
                if self._is_wanted(value):
                    x = x.detach().requires_grad_()
                    own[value] = box, x
                held[value] = x
            last = self._last_with_gradients(stage, tile)
            self._compute(tile, held, upto=len(tile.steps) - (last is not None))
        pairs = self._ends(stage, tile, held, of_results, last is None)
        if last is not None:
            pairs = self._before_last(stage, tile, last, held, pairs)
        ends, of_ends = [x for x, _ in pairs], [g for _, g in pairs]
        del pairs
        held.clear()
        whole = list(leaves)
        starts = [*(x for _, x in own.values()), *leaves.values()]
        if not ends or not starts:
            return
        self._heap.make_room(sum(x.nbytes for x in ends))
        gradients = torch.autograd.grad(ends, starts, of_ends, allow_unused=True)
        ends.clear()
        for (value, (box, _)), g in zip(own.items(), gradients, strict=False):
            if g is not None:
                self._cotangent(value).add(box, g)
        for value, g in zip(whole, gradients[len(own) :], strict=True):
            if g is not None:
                self._cotangent(value).add(value.box, g)

    def _last_with_gradients(self, stage: Stage, tile: Tile) -> TileStep | None:
        """The step that makes the stored value, if its gradients can be had without its output."""
        if len(stage.roots) != 1 or self.store.device.type == "meta":
            return None
        step = tile.steps[-1]
        operator = step.operation.operator
        is_last = step.operation is stage.roots[0].by and isinstance(operator, Local)
        return step if is_last and operator.gradients is not None and not step.operation.autocast else None  # type: ignore[union-attr]

    def _ends(
        self,
        stage: Stage,
        tile: Tile,
        held: dict[GlobalValue, Tensor],
        of_results: Mapping[Operation, Sequence[Tensor | None]],
        is_computed: bool,
    ) -> list[tuple[Tensor, Tensor]]:
        """What backward starts from in a tile, each with its cotangent; a root that is not computed again is read."""
        found: list[tuple[Tensor, Tensor]] = []
        if not is_computed and of_results:
            (root,) = stage.roots
            held[root] = self._read(root, tile.box)
        for root in stage.roots:
            if root in self.cotangents and (not is_computed or held[root].requires_grad):
                found.append((held.get(root, _NOTHING), self.cotangents[root].read(tile.box, self.store.device)))
        for operation, arguments in tile.collected:
            if operation not in of_results:
                continue
            with torch.enable_grad():
                given = [_part(each, held) for each in arguments]
            assert isinstance(operation.operator, Collecting)
            with torch.no_grad(), operation.casting():
                plain = [x.detach() for x in given]
                gradients = operation.operator.gradients(self.states[operation], tile.box, plain, of_results[operation])
            own = not is_computed
            found += [
                (x, g) for x, g in zip(given, gradients, strict=True) if g is not None and (own or x.requires_grad)
            ]
        return found

    def _before_last(
        self,
        stage: Stage,
        tile: Tile,
        last: TileStep,
        held: dict[GlobalValue, Tensor],
        pairs: list[tuple[Tensor, Tensor]],
    ) -> list[tuple[Tensor, Tensor]]:
        """The same one step earlier: the inputs of the last step, with their gradients."""
        if not pairs:
            return []
        total = pairs[0][1] if len(pairs) == 1 else torch.stack([g for _, g in pairs]).sum(0)
        with torch.enable_grad():
            given = [_part(each, held) for each in last.arguments]
        operator = last.operation.operator
        assert isinstance(operator, Local)
        assert operator.gradients is not None
        self._heap.make_room(last.nbytes)
        with torch.no_grad():
            found = operator.gradients(
                last.box, [x.detach() for x in given], total.to(given[0].dtype), [x.requires_grad for x in given]
            )
        if found is None:
            with torch.enable_grad():
                return [(self._computed(last.operation, last.box, given), total)]
        return [(x, g) for x, g in zip(given, found, strict=True) if x.requires_grad and g is not None]

    def _pull_back_whole(self, stage: Stage, leaves: Mapping[GlobalValue, Tensor]) -> None:
        operation = stage.whole
        assert operation is not None
        leaves = dict(leaves)
        given = []
        for value in operation.inputs:
            if value not in leaves and self._is_wanted(value):
                leaves[value] = self._read(value, None).detach().requires_grad_()
            given.append(leaves[value] if value in leaves else self._read(value, None))
        with torch.enable_grad():
            results = _several(self._computed(operation, None, given))
        pairs = [
            (y, self.cotangents[root].read(root.box, self.store.device))
            for root, y in zip(stage.roots, results, strict=True)
            if root in self.cotangents and y.requires_grad
        ]
        if pairs and leaves:
            ends, of_ends = [y for y, _ in pairs], [g for _, g in pairs]
            gradients = torch.autograd.grad(ends, list(leaves.values()), of_ends, allow_unused=True)
            for value, g in zip(leaves, gradients, strict=True):
                if g is not None:
                    self._cotangent(value).add(value.box, g)
        self._report(stage)


_NOTHING = torch.empty(0, device="cpu")


class _Given(InMemory):
    """A cotangent that the user's code has given: it is read, and not added to."""

    def __init__(self, given: Tensor) -> None:
        super().__init__(given)
        self.given = given


def _part(argument: Argument, held: Mapping[GlobalValue, Tensor]) -> Tensor:
    x = held.get(argument.value)
    if argument.empty is not None:
        spec = argument.value.spec
        return torch.empty(argument.empty, dtype=spec.dtype, device=spec.device if x is None else x.device)
    assert x is not None
    return x if argument.slices is None else x[argument.slices]


def _several(made: Any) -> Sequence[Tensor]:
    return made if isinstance(made, list | tuple) else (made,)


@contextmanager
def _named(stage: Stage) -> Iterator[None]:
    """Add to an error of torch which operator it comes from."""
    try:
        yield
    except (GridwiseError, KeyboardInterrupt):
        raise
    except Exception as error:
        error.add_note(f"  while computing tiles of {stage.name}")
        raise
