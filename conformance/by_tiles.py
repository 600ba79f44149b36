"""One sample by tiles on one worker, compared with torch's own result."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from tests.models import threads as workers
from torch import Tensor

import gridwise
from gridwise.grid import Grid
from gridwise.models import placing
from gridwise.models.recording.containers import flatten
from gridwise.models.recording.recording import Recording
from gridwise.nn.engine.agreement import agreement
from gridwise.partition import CartesianPartition

from .findings import Finding, Outcome
from .on_threads import (
    SEED,
    Expected,
    allowance,
    backward,
    closed_over,
    difference,
    held_by,
    like,
    outcome_of,
    recorded,
    sensitivity,
    without_sizes,
)
from .samples import Sample


@dataclass(frozen=True)
class Tiles:
    """A way to cut a sample into tiles."""

    tile: tuple[int, ...]
    """The most rows along the last dims."""
    closed: bool = False
    """Whether the function closes over the other tensors."""

    def __str__(self) -> str:
        return f"tiles of {'x'.join(map(str, self.tile))}{', others closed' if self.closed else ''}"


def tiles(sample: Sample) -> list[Tiles]:
    """Tiles of one row and of two, along the last dim and along two dims; the other tensors given, and closed over."""
    sizes = [(2,)] if sample.is_plain else [(1,), (2,), (2, 2), (3, 1)]
    dims = max(x.dim() for x in sample.tensors)
    several = len(sample.tensors) > 1 and not sample.is_plain
    return [
        Tiles(size, closed)
        for size in sizes
        if len(size) <= dims
        for closed in ((False, True) if several else (False,))
    ]


def check(sample: Sample, chosen: Sequence[Tiles]) -> Iterator[Finding]:
    """What came of a sample, cut in each of these ways."""
    torch.set_num_threads(1)
    for closed in (False, True):
        own = [way for way in chosen if way.closed == closed]
        if own:
            yield from _check(closed_over(sample) if closed else sample, own)


def _check(sample: Sample, chosen: Sequence[Tiles]) -> Iterator[Finding]:
    def found(way: Tiles, outcome: Outcome, text: str = "", error: float = 0.0) -> Finding:
        return Finding(f"{sample.name}: {way}", sample.operator, outcome, error, text)

    try:
        expected = Expected(sample)
    except Exception as error:
        yield from (found(way, "inapplicable", f"{type(error).__name__}: {error}") for way in chosen)
        return
    try:
        recording = recorded(sample)
        draws = _draws(recording)
    except Exception as error:
        yield from (found(way, *outcome_of(error)) for way in chosen)
        return
    allowed = allowance(sample)
    for way in chosen:
        try:
            errors, wholes = _compared(sample, recording if draws else None, expected, way)
        except Exception as error:
            yield found(way, *outcome_of(error))
            continue
        name, worst = max(errors.items(), key=lambda pair: pair[1], default=("", 0.0))
        if worst > allowed:
            allowed = max(allowed, sensitivity(sample, expected))
        if worst > allowed:
            yield found(way, "wrong", f"{name}: {worst:.1e}", worst)
        else:
            yield found(way, "gathered" if wholes else "equal", "; ".join(wholes), worst)


def _draws(recording: Recording) -> bool:
    return bool(recording.draws)


def _compared(
    sample: Sample, recording: Recording | None, expected: Expected, way: Tiles
) -> tuple[dict[str, float], list[str]]:
    """Errors by name, and which operators are computed whole, and why."""
    module = copy.deepcopy(sample.module)
    own = module if module is not None else sample.call
    big: Any = gridwise.tiled(own, tile=way.tile, progress=False)
    given = [like(x, x).requires_grad_(x.requires_grad) for x in sample.tensors]
    torch.manual_seed(SEED)
    outputs, _ = flatten(sample.call(big, *given) if module is not None else big(*given))
    (runner,) = type(big)._tiled_runners.values()
    scheduled = next(iter(runner._kept.values()))
    stages = [stage.whole for stage in scheduled.schedule.stages if stage.whole is not None]
    wholes = sorted(
        f"{each.name.partition(',')[0]}: {without_sizes(each.operator.reason)}"
        for each in stages
        if not all(value.of_parameters for value in each.inputs)
    )
    backward(outputs, expected.cotangents)
    wanted, tensors, held = expected.outputs, expected.tensors, expected.held()
    if recording is not None:  # by the global index of each element, as on one worker
        wanted, tensors, held = _on_one_worker(sample, recording, expected)
    errors: dict[str, float] = {}
    for i, (y, whole) in enumerate(zip(outputs, wanted, strict=True)):
        errors[f"output {i}"] = 0.0 if "empty" in sample.operator else difference(y, whole, ...)
        if whole.requires_grad != y.requires_grad:
            errors[f"whether output {i} needs a gradient"] = float("inf")
    for i, (x, other) in enumerate(zip(given, tensors, strict=True)):
        if x.requires_grad:
            errors[f"gradient of tensor {i}"] = difference(x.grad, other.grad, ...)
    errors |= {name: difference(x, held[name], ...) for name, x in held_by(module).items()}
    return errors, wholes


def _on_one_worker(
    sample: Sample, recording: Recording, expected: Expected
) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor | None]]:
    """What one worker makes of the sample with all of its tensors, with random numbers of its own."""
    tensors = [like(x, x).requires_grad_(x.requires_grad) for x in sample.tensors]
    module = copy.deepcopy(sample.module)

    def body(transport: Any) -> list[Tensor]:
        grid = Grid((0,), (1,) * sample.tensors[sample.first].dim())
        program = placing.place(recording, [None] * len(tensors), CartesianPartition(transport, grid))
        parameters = {} if module is None else dict(module.named_parameters())
        buffers = {} if module is None else dict(module.named_buffers())
        torch.manual_seed(SEED)
        outputs = program(parameters, buffers, tensors)
        backward(outputs, expected.cotangents)
        return outputs

    with agreement(False), patch.object(placing, "SMALL", 0):
        (outputs,) = workers.on_threads(1, body)
    return outputs, tensors, held_by(module)
