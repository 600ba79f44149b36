"""Running a schedule: stage by stage, tile by tile.

read boxes ──► compute ──► write a box, add to what is collected
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import GridwiseError
from ..grid import Shape
from ..operators.on_boxes import Collecting
from ..operators.random.random_stream import RandomStream
from .arrays import InFile, InMemory, StoredArray
from .cone import Argument, Stage, Tile
from .device_copies import OnHost, lanes_of
from .graph import GlobalValue, Operation
from .heap import within
from .schedule import Schedule


@dataclass
class Store:
    """Where arrays lie that cross stages."""

    device: torch.device
    """What computes."""
    folder: Path | None = None
    """None: in memory."""
    small: int = 1 << 20
    """Arrays of up to so many bytes are kept where they are computed."""

    @classmethod
    def within(cls, limit: int | None, device: torch.device, folder: Path | None) -> Store:
        """A store whose small arrays are few beside a limit."""
        return cls(device, folder, cls.small if limit is None else min(cls.small, limit // FEW))

    def new(self, value: GlobalValue, zeros: bool = False) -> StoredArray:
        small = value.nbytes <= self.small
        if small and self.device.type != "cpu":
            return InMemory(torch.zeros(value.shape, dtype=value.spec.dtype, device=self.device))
        folder = None if small else self.folder
        return made(value.shape, value.spec.dtype, folder, self.device, zeros)

    def arrived(self) -> None:
        """From now on, what has been fetched may be used."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).wait_stream(lanes_of(self.device).into)

    def finish(self) -> None:
        """Wait until all that was written is there."""
        if self.device.type == "cuda":
            lanes_of(self.device).finish()


def made(
    shape: Shape, dtype: torch.dtype, folder: Path | None, device: torch.device, zeros: bool = False
) -> StoredArray:
    """A new array: in a file if there is a folder, else in the memory of the host."""
    if folder is not None and 0 not in shape:
        return InFile(shape, dtype, folder)
    make, pinned = torch.zeros if zeros else torch.empty, device.type == "cuda" and 0 not in shape
    return in_memory(make(shape, dtype=dtype, device="cpu", pin_memory=pinned), device)


def in_memory(tensor: Tensor, device: torch.device) -> InMemory:
    """A tensor as an array of tiles that are computed on a device."""
    is_away = device.type == "cuda" and tensor.device.type == "cpu"
    return OnHost(tensor, device) if is_away else InMemory(tensor)


Given = TypeVar("Given")
FEW = 256
"""The limit of a call, over the size of what may be kept in memory from stage to stage."""
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

    def forward(self) -> None:
        with torch.no_grad(), self.within_limit(max(self.schedule.stored, default=0)):
            for number, stage in enumerate(self.schedule.stages):
                with named(stage):
                    self._run_stage(stage)
                if not self.keeps:
                    self._release(self.schedule.last_read[number])

    @contextmanager
    def within_limit(self, stored: int) -> Iterator[None]:
        """Use no more memory than the tiles may, and what is `stored` meanwhile, if that lies in memory."""
        limit, more = self.schedule.memory, 0 if self.store.folder else stored
        with within(limit and limit + more, self.schedule.peak + more, self.store.device):
            try:
                yield
            finally:
                self.store.finish()

    def _run_stage(self, stage: Stage) -> None:
        for root in stage.roots:
            if root not in self.arrays:
                self.arrays[root] = self.store.new(root)
        if stage.whole is not None:
            given = [self._read(value, None) for value in stage.whole.inputs]
            for root, y in zip(stage.roots, several(self._computed(stage.whole, None, given)), strict=True):
                self.arrays[root].write(root.box, y)
            self._report(stage)
            return
        states: dict[Operation, Any] = {}
        for tile, held in self._with_fetched(stage.tiles(stage.counts), self._fetched):
            self._compute(tile, held)
            for root in stage.roots:
                self.arrays[root].write(tile.box, held[root])
            for operation, arguments in tile.collected:
                assert isinstance(operation.operator, Collecting)
                given = [part_of(each, held) for each in arguments]
                with operation.casting():
                    states[operation] = operation.operator.add(states.get(operation), tile.box, *given)
                given.clear()  # the next tile is to have the memory
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

    def _with_fetched(self, tiles: Sequence[Tile], fetch: Callable[[Tile], Given]) -> Iterator[tuple[Tile, Given]]:
        """Tiles, each with what is fetched for it; on a device, boxes of the next one travel while one is computed."""
        ahead = self.store.device.type == "cuda"
        coming: Given | None = None
        for tile, following in zip(tiles, [*tiles[1:], None], strict=True):
            own = fetch(tile) if coming is None else coming
            self.store.arrived()
            coming = fetch(following) if ahead and following is not None else None
            yield tile, own
            del own

    def _fetched(self, tile: Tile) -> dict[GlobalValue, Tensor]:
        return {value: self.arrays[value].fetch(box, self.store.device) for value, box in tile.reads}

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
                given = [part_of(each, held) for each in step.arguments]
                results = several(self._computed(operation, box, given))
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


def part_of(argument: Argument, held: Mapping[GlobalValue, Tensor]) -> Tensor:
    x = held.get(argument.value)
    if argument.empty is not None:
        spec = argument.value.spec
        return torch.empty(argument.empty, dtype=spec.dtype, device=spec.device if x is None else x.device)
    assert x is not None
    return x if argument.slices is None else x[argument.slices]


def several(made: Any) -> Sequence[Tensor]:
    return [y for y in made if y is not None] if isinstance(made, list | tuple) else (made,)


@contextmanager
def named(stage: Stage) -> Iterator[None]:
    """Add to an error of torch which operator it comes from."""
    try:
        yield
    except (GridwiseError, KeyboardInterrupt):
        raise
    except Exception as error:
        error.add_note(f"  while computing tiles of {stage.name}")
        raise
