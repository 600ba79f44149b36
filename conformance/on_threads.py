"""One sample of the database on workers that are threads: recorded once, placed and run for each way to cut it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from tests.models import threads as workers
from torch import Tensor

from gridwise.errors import GridwiseError
from gridwise.grid import Grid, Layout
from gridwise.models import placing
from gridwise.models.placement import Cut
from gridwise.models.random import sequential_random
from gridwise.models.recording.containers import described, flatten
from gridwise.models.recording.record import record
from gridwise.models.recording.recording import Recording
from gridwise.models.recording.tracing import InputSpec
from gridwise.models.report import Report
from gridwise.nn.engine.agreement import agreement
from gridwise.partition import CartesianPartition

from .findings import Finding, Outcome
from .samples import Sample, Way

workers.PATIENCE = 900.0  # seconds for which one waits for another, on a machine that has much to do
EXACT = 1e-9
SENSITIVITY = 100.0
"""How many times what a change of the inputs by 1e-15 causes may be the error on blocks."""
SEED = 7


class Expected:
    """What torch makes of a sample: outputs, and gradients of the tensors that need one."""

    def __init__(self, sample: Sample, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tensors = []
        for x in sample.tensors:
            change = torch.randn(x.shape, dtype=torch.float64, generator=generator) if noise else 0.0
            y = x.detach() * (1 + noise * change) if x.is_floating_point() or x.is_complex() else x.detach().clone()
            self.tensors.append(y.to(x.dtype).requires_grad_(x.requires_grad))
        torch.manual_seed(SEED)
        self.outputs, tree = flatten(sample.call(*self.tensors))
        self.form = described(tree)
        self.cotangents = [_cotangent(y, i) for i, y in enumerate(self.outputs)]
        _backward(self.outputs, self.cotangents)


def _cotangent(y: Tensor, number: int) -> Tensor:
    dtype = y.dtype if y.requires_grad else torch.float64
    return torch.randn(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(number))


def _backward(outputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> None:
    wanted = [(y, g) for y, g in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if wanted:
        torch.autograd.backward([y for y, _ in wanted], [g for _, g in wanted])


def check(sample: Sample, chosen: Sequence[Way], loose: float = 0.0) -> Iterator[Finding]:
    """What came of a sample, cut in each of these ways; `loose` is a difference that is allowed in any case."""
    torch.set_num_threads(1)
    for closed in (False, True):
        own = [way for way in chosen if (way.others == "closed") == closed]
        if own:
            yield from _check(_closed(sample) if closed else sample, own, loose)


def _closed(sample: Sample) -> Sample:
    """The sample as a function of the tensor that is cut, which closes over the others."""
    others = [x.detach() for x in sample.tensors]

    def call(x: Tensor) -> Any:
        given = [x if i == sample.first else each.clone() for i, each in enumerate(others)]
        return sample.call(*given)

    return Sample(sample.operator, sample.number, call, (sample.tensors[sample.first],), 0)


def _check(sample: Sample, chosen: Sequence[Way], loose: float) -> Iterator[Finding]:
    def found(way: Way, outcome: Outcome, text: str = "", error: float = 0.0) -> Finding:
        return Finding(f"{sample.name}: {way}", sample.operator, outcome, error, text)

    try:
        expected = Expected(sample)
    except Exception as error:
        yield from (found(way, "inapplicable", f"{type(error).__name__}: {error}") for way in chosen)
        return
    try:
        recording = recorded(sample)
    except GridwiseError as error:
        yield from (found(way, "refused", reason_of(error)) for way in chosen)
        return
    except Exception as error:
        yield from (found(way, "wrong", f"recording: {type(error).__name__}: {error}") for way in chosen)
        return
    allowed = max([EXACT, loose, *(SENSITIVITY * torch.finfo(x.dtype).eps for x in sample.tensors if not _is_exact(x))])
    for way in chosen:
        try:
            errors, gathers = _compared(sample, recording, expected, way)
        except GridwiseError as error:
            yield found(way, "refused", reason_of(error))
            continue
        except Exception as error:
            yield found(way, "wrong", f"{type(error).__name__}: {error}")
            continue
        if described(recording.returned) != expected.form:
            errors["structure of the outputs"] = float("inf")
        name, worst = max(errors.items(), key=lambda pair: pair[1], default=("", 0.0))
        if worst > allowed:
            allowed = max(allowed, SENSITIVITY * _sensitivity(sample, expected))
        if worst > allowed:
            yield found(way, "wrong", f"{name}: {worst:.1e}", worst)
        else:
            yield found(way, "gathered" if gathers else "equal", "; ".join(gathers), worst)


def _is_exact(x: Tensor) -> bool:
    return x.dtype in (torch.float64, torch.complex128) or not (x.is_floating_point() or x.is_complex())


def recorded(sample: Sample) -> Recording:
    likes = [InputSpec(tuple(x.shape), x.dtype, x.device, x.requires_grad) for x in sample.tensors]
    _, tree = flatten((tuple(sample.tensors), {}))
    return record(sample.call, {}, likes, tree, sample.operator)


def _compared(sample: Sample, recording: Recording, expected: Expected, way: Way) -> tuple[dict[str, float], list[str]]:
    """The largest error of any worker by name, and what is gathered."""
    size = 1
    for extent in way.shape:
        size *= extent
    with agreement(False), patch.object(placing, "SMALL", 0):
        found = workers.on_threads(size, lambda transport: _on_worker(transport, sample, recording, expected, way))
    errors: dict[str, float] = {}
    for each, _ in found:
        for name, error in each.items():
            errors[name] = max(error, errors.get(name, 0.0))
    return errors, gathered(found[0][1])


def gathered(report: Report) -> list[str]:
    """What is gathered without need; a tensor whose dims the operator combines has to be whole."""
    return sorted({f"{each.operator}: {without_sizes(each.reason)}" for each in report.gathers if not each.combines})


def _on_worker(
    transport: Any, sample: Sample, recording: Recording, expected: Expected, way: Way
) -> tuple[dict[str, float], Report]:
    torch.set_num_threads(1)
    grid, rank = Grid(tuple(range(transport.size)), way.shape), transport.rank
    layouts = [_layout_of(sample, i, way) for i in range(len(sample.tensors))]
    program = placing.place(recording, layouts, CartesianPartition(transport, grid))
    blocks = [
        x.detach()[_box(layout, rank)].clone().requires_grad_(x.requires_grad)
        for x, layout in zip(sample.tensors, layouts, strict=True)
    ]
    with sequential_random(torch.Generator().manual_seed(SEED)):
        outputs = program({}, {}, blocks)
    boxes = [_box(each.layout if isinstance(each, Cut) else None, rank) for each in program.outputs]
    errors = {}
    for i, (y, whole, box) in enumerate(zip(outputs, expected.outputs, boxes, strict=True)):
        has_values = "empty" not in sample.operator  # whatever lies in memory
        errors[f"output {i}"] = difference(y, whole, box) if has_values else _unlike(y, whole[box])
        if whole.requires_grad != y.requires_grad:
            errors[f"whether output {i} needs a gradient"] = float("inf")
    _backward(outputs, [g[box] for g, box in zip(expected.cotangents, boxes, strict=True)])
    for i, (x, whole, layout) in enumerate(zip(blocks, expected.tensors, layouts, strict=True)):
        if whole.requires_grad:
            errors[f"gradient of tensor {i}"] = difference(x.grad, whole.grad, _box(layout, rank))
    return errors, program.report


def _layout_of(sample: Sample, number: int, way: Way) -> Layout | None:
    x = sample.tensors[number]
    is_cut = number == sample.first or (way.others == "cut" and x.dim() == len(way.shape))
    if way.which:
        is_cut = number in way.which
    return way.layout(x.shape) if is_cut else None


def _box(layout: Layout | None, rank: int) -> Any:
    return ... if layout is None else layout.block(rank).slices


def _unlike(got: Tensor, part: Tensor) -> float:
    return 0.0 if (got.shape, got.dtype) == (part.shape, part.dtype) else float("inf")


def difference(got: Tensor | None, whole: Tensor | None, box: Any) -> float:
    """How far a worker's block is from its part of the whole, relative to the largest number of the whole, or to 1."""
    if got is None or whole is None:
        present = got if whole is None else whole[box]
        return 0.0 if present is None or not present.detach().abs().sum() else float("inf")
    part, got = whole.detach()[box], got.detach()
    if _unlike(got, part) or not got.numel():
        return _unlike(got, part)
    if not (got.is_floating_point() or got.is_complex()):
        return float((got != part).sum())
    same = (got == part) | (got.isnan() & part.isnan())
    scale = whole.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1.0)
    apart = ((got - part).abs() / scale).nan_to_num(float("inf")).masked_fill(same, 0.0)
    return float(apart.max())


def _sensitivity(sample: Sample, expected: Expected) -> float:
    """What a change of the inputs by 1e-15 of themselves changes."""
    other = Expected(sample, 1e-15)
    pairs = [*zip(other.outputs, expected.outputs, strict=True)]
    pairs += [(a.grad, b.grad) for a, b in zip(other.tensors, expected.tensors, strict=True)]  # type: ignore[misc]
    return max((error for a, b in pairs if (error := difference(a, b, ...)) < float("inf")), default=0.0)


def reason_of(error: GridwiseError) -> str:
    """Why something is refused, without the sizes and lines of this case."""
    lines = [line.strip() for line in str(error).splitlines()]
    found = [line for line in lines if not line.startswith("fix:")]
    text = found[1] if len(found) > 1 and "cannot be distributed" in found[0] else found[0]
    text = re.sub(r",? *\w+\.py:\d+, in \w+:  .*?\*\*kwargs\)", "", text)
    return without_sizes(text.rstrip(": "))


def without_sizes(text: str) -> str:
    return re.sub(r"\(\d[\d, ]*\)", "(...)", text)[:300]
