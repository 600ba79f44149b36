"""The steps of a program under construction: slots, movements between placements, regions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..grid import Layout
from .movement import is_there, movement, received
from .placement import Cut, GlobalTensor, Placement, Replicated, Want, Workers
from .program import Step
from .report import Report

Moved = dict[tuple[int, Want], "Item"]


@dataclass(frozen=True)
class Item:
    """A tensor of the program: its slot, and what is known about it."""

    slot: int
    value: GlobalTensor


class Tape:
    """The steps of a program, in order, while they are being added."""

    def __init__(self, workers: Workers, report: Report) -> None:
        self.workers, self.report = workers, report
        self.steps: list[Step] = []
        self.count = self.draws = 0
        self.name = ""
        """The operator whose steps are being added, as named in error messages."""
        self._moved: Moved = {}
        self._outer: list[tuple[list[Step], Moved]] = []

    def new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def add(
        self, run: Any, inputs: Sequence[Item], values: GlobalTensor | Sequence[GlobalTensor], draws: bool = False
    ) -> list[Item]:
        """Add a step that makes one tensor or several; the items of these."""
        made = [Item(self.new_slot(), value) for value in ([values] if isinstance(values, GlobalTensor) else values)]
        outputs = made[0].slot if isinstance(values, GlobalTensor) else tuple(item.slot for item in made)
        number = self.next_draw() if draws else 0
        slots, placement = tuple(item.slot for item in inputs), made[-1].value.placement
        self.steps.append(Step(run, slots, outputs, draws, number, (), self.name, placement))
        return made

    def moved_to(self, item: Item, want: Want, name: str) -> Item:
        """The tensor in the wanted placement; a movement is added unless it already was."""
        if is_there(item.value, want):
            return item
        key = item.slot, want
        if key not in self._moved:
            value = item.value
            placement: Placement = Cut(want) if isinstance(want, Layout) else Replicated()
            move = movement(value, want, self.workers, name)
            (self._moved[key],) = self.add(move, [item], replace(value, placement=placement))
            self.report.moved += received(value, want, self.workers)
        return self._moved[key]

    def next_draw(self) -> int:
        """The number of the next step that draws random numbers; it depends on the recording only, not on the grid."""
        self.draws += 1
        return self.draws

    def forget(self, slots: Collection[int]) -> None:
        """Forget moved copies of tensors that have been written to since."""
        self._moved = {key: item for key, item in self._moved.items() if key[0] not in slots}

    # Regions: steps that run as one

    def begin(self) -> None:
        self._outer.append((self.steps, dict(self._moved)))
        self.steps = []

    def end(self, live: Iterable[int]) -> tuple[list[Step], tuple[int, ...], tuple[int, ...]]:
        """The steps since `begin`, the slots that they take from outside, and those of `live` that they make.

        Copies that were moved inside the region are not reused after it.
        """
        inner = self.steps
        self.steps, self._moved = self._outer.pop()
        made = {slot for step in inner for slot in step.made}
        used = {slot for step in inner for slot in step.inputs} - made
        return inner, tuple(sorted(used)), tuple(sorted(made & set(live)))
