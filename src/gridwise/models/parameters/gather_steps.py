"""Where the steps of a program gather the parameters that are cut.

    begin                  takes this worker's blocks
    gather 0               right before the first step that uses one of its parameters
    steps ...              each parameter is freed after the last step that uses it
    gather 1 ...

A parameter that is used again much later (more than `prefetch_bytes` of others are gathered meanwhile) is gathered again.
Steps that `torch.utils.checkpoint` recomputes have gathers of their own among them, which are recomputed too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ...nn.parameters.blocks import Sharding, is_cut
from ...nn.parameters.gradient_buckets import FULL
from ..program import Checkpoint, Program, Step, free_early
from .gathering import CallGathers, GatherSchedule, UsesParameters
from .group import GatherGroup

SMALL = FULL // 8
"""Parameters up to this size travel together, and apart from larger ones: they are needed all along."""


@dataclass(frozen=True)
class CutParameter:
    """A parameter in the slot `slot`, of which each worker has a block."""

    slot: int
    name: str
    sharding: Sharding
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.sharding.shape).numel()


@dataclass
class Use:
    """The uses of a parameter by steps near to one another, which one gather serves."""

    parameter: CutParameter
    slot: int
    """Where the whole parameter is."""
    steps: list[int]
    at: int
    """How many bytes had been gathered in all at its last use."""


@dataclass
class Packed:
    """Uses that are gathered in one message."""

    first: int
    """The first step that uses one of them."""
    uses: list[Use] = field(default_factory=list)
    nbytes: int = 0


def gather_parameters(program: Program, stored: Mapping[str, tuple[dict[str, Any], str]], prefetch_bytes: int) -> None:
    """Let a program gather those of its `stored` parameters that are cut."""
    cut: dict[int, CutParameter] = {}
    for slot, source in program.sources:
        held, key = stored.get(source.name, ({}, "")) if source.kind == "parameter" else ({}, "")
        value = held.get(key)
        if is_cut(value):
            assert value.sharding is not None
            cut[slot] = CutParameter(slot, source.name, value.sharding, value.dtype, value.device)
    if changed := [each.name for slot, each in cut.items() if slot in program.changed_slots]:
        raise UnsupportedError(
            f"{program.name} changes {', '.join(changed)} in `forward`, of which each worker has a block only.",
            fix="make it a buffer, or distribute(..., parameters='whole').",
        )
    if cut:
        program.cut_slots = frozenset(cut)
        program.steps = _with_gathers(program, program.steps, cut, prefetch_bytes)
        free_early(program.steps, set(program.results))


def _with_gathers(
    program: Program, steps: Sequence[Step], cut: Mapping[int, CutParameter], prefetch_bytes: int
) -> list[Step]:
    """The steps, with those that gather the parameters in the slots `cut`."""
    for step in steps:
        if isinstance(step.run, Checkpoint):
            inner = {slot: cut[slot] for slot in step.inputs if slot in cut}
            if inner:
                step.run.steps = _with_gathers(program, step.run.steps, inner, prefetch_bytes)
                free_early(step.run.steps, set(step.run.outputs))
    uses = _uses(steps, cut, prefetch_bytes, program.new_slot)
    if not uses:
        return list(steps)
    packed = _packed(uses)
    groups = [
        GatherGroup(
            program.workers,
            _name(each.uses[0].parameter.name, len(each.uses), program.name),
            [use.parameter.sharding for use in each.uses],
            each.nbytes,
        )
        for each in packed
    ]
    schedule = GatherSchedule(groups, prefetch_bytes)
    places = {use.slot: (number, i) for number, each in enumerate(packed) for i, use in enumerate(each.uses)}
    renamed = [{use.parameter.slot: use.slot for use in uses if number in use.steps} for number in range(len(steps))]
    made = [_begin(schedule, packed, steps[packed[0].first])]
    gathers = iter(enumerate(packed))
    waiting = next(gathers, None)
    for number, step in enumerate(steps):
        while waiting is not None and waiting[1].first == number:
            made.append(_gather(schedule, *waiting, step))
            waiting = next(gathers, None)
        made.append(_using(step, renamed[number], schedule, places) if renamed[number] else step)
    return made


def _name(first: str, count: int, of: str) -> str:
    return f"{first}{', and more,' if count > 1 else ''} of {of}"


def _uses(
    steps: Sequence[Step], cut: Mapping[int, CutParameter], prefetch_bytes: int, new_slot: Callable[[], int]
) -> list[Use]:
    """Which steps use which parameter, in the order of the first use."""
    uses, current, gathered = list[Use](), dict[int, Use](), 0
    for number, step in enumerate(steps):
        if isinstance(step.run, Checkpoint):
            continue
        for slot in dict.fromkeys(slot for slot in step.inputs if slot in cut):
            use = current.get(slot)
            if use is None or gathered - use.at > prefetch_bytes:
                use = current[slot] = Use(cut[slot], new_slot(), [], 0)
                uses.append(use)
                gathered += cut[slot].nbytes
            use.steps.append(number)
            use.at = gathered
    return uses


def _packed(uses: Sequence[Use]) -> list[Packed]:
    """The uses in messages: of one dtype and device, small ones together."""
    packed, current = list[Packed](), dict[tuple[torch.dtype, torch.device, bool], Packed]()
    for use in uses:
        size = use.parameter.nbytes
        key = use.parameter.dtype, use.parameter.device, size <= SMALL
        into = current.get(key)
        # one gather of a parameter at a time: the next begins a message of its own
        again = into is not None and any(use.parameter is each.parameter for each in into.uses)
        if into is None or again or into.nbytes + size > (SMALL if size <= SMALL else FULL):
            into = current[key] = Packed(use.steps[0])
            packed.append(into)
        into.uses.append(use)
        into.nbytes += size
    return packed


def _begin(schedule: GatherSchedule, packed: Sequence[Packed], before: Step) -> Step:
    """The step that takes this worker's blocks."""
    slots = tuple(use.parameter.slot for each in packed for use in each.uses)
    sizes = [len(each.uses) for each in packed]

    def begin(*blocks: Tensor) -> None:
        given = iter(blocks)
        schedule.current = CallGathers(schedule, [[*islice(given, size)] for size in sizes])

    return Step(begin, slots, None, name=before.name)


def _gather(schedule: GatherSchedule, number: int, packed: Packed, before: Step) -> Step:
    """The step that gathers a group, for the step that comes next."""

    def gather() -> Sequence[Tensor]:
        assert schedule.current is not None
        return schedule.current.gathered(number)

    return Step(gather, (), tuple(use.slot for use in packed.uses), name=before.name)


def _using(
    step: Step, renamed: Mapping[int, int], schedule: GatherSchedule, places: Mapping[int, tuple[int, int]]
) -> Step:
    """A step that uses gathered parameters in place of blocks."""
    inputs = tuple(renamed.get(slot, slot) for slot in step.inputs)
    wholes = [(at + step.draws, *places[slot]) for at, slot in enumerate(inputs) if slot in places]
    return replace(step, run=UsesParameters(step.run, schedule, wholes), inputs=inputs)
