"""One sample on workers that are threads: recorded once, placed and run for each way to cut it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from tests.models import threads as workers
from torch import Tensor

from gridwise.errors import FaultError, GridwiseError, InternalError
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
"""How many times what a change of the inputs by some units in the last place causes may be the error on blocks."""
COARSE = {torch.bfloat16: 4.0, torch.float16: 4.0}
"""The same, for dtypes of few digits."""
NOISE = 4.5
SEED = 7


class Expected:
    """What torch makes of a sample: outputs, gradients of the tensors that need one, and of parameters; buffers afterwards."""

    def __init__(self, sample: Sample, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tensors = []
        for x in sample.tensors:
            y = x.detach()
            if y.is_floating_point() or y.is_complex():
                change = torch.randn(y.shape, dtype=torch.float64, generator=generator) if noise else 0.0
                y = y * (1 + noise * torch.finfo(y.dtype).eps * change) if noise else y.clone()
            self.tensors.append((y.to(x.dtype) if noise else like(x, y)).requires_grad_(x.requires_grad))
        self.module = copy.deepcopy(sample.module)
        torch.manual_seed(SEED)
        self.outputs, tree = flatten(sample.of(self.module)(*self.tensors))
        self.form = described(tree)
        self.cotangents = [cotangent(y, i) for i, y in enumerate(self.outputs)]
        backward(self.outputs, self.cotangents)

    def held(self) -> dict[str, Tensor | None]:
        """Gradients of parameters, and buffers, by names that say so."""
        return held_by(self.module)


def held_by(module: torch.nn.Module | None) -> dict[str, Tensor | None]:
    """Gradients of the parameters of a module, and its buffers, by names that say so."""
    if module is None:
        return {}
    found: dict[str, Tensor | None] = {f"gradient of {name}": p.grad for name, p in module.named_parameters()}
    return found | {f"buffer {name}": x for name, x in module.named_buffers()}


def like(x: Tensor, y: Tensor) -> Tensor:
    """A copy of `y` that lies in memory as `x` does, or as a block of it may."""
    if x.dim() in (4, 5) and not x.is_contiguous():
        format = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        if x.is_contiguous(memory_format=format):
            return y.detach().clone(memory_format=format)
    if any(stride == 0 and n > 1 for stride, n in zip(x.stride(), x.shape, strict=True)):
        first = [slice(0, 1) if stride == 0 else slice(None) for stride in x.stride()]
        return y.detach()[tuple(first)].clone().expand(y.shape) if y.numel() else y.detach().clone()
    return y.detach().clone(memory_format=torch.contiguous_format)


def cotangent(y: Tensor, number: int) -> Tensor:
    dtype = y.dtype if y.requires_grad else torch.float64
    return torch.randn(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(number))


def backward(outputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> None:
    wanted = [(y, g) for y, g in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if wanted:
        torch.autograd.backward([y for y, _ in wanted], [g for _, g in wanted])


def check(sample: Sample, chosen: Sequence[Way], loose: float = 0.0) -> Iterator[Finding]:
    """What came of a sample, cut in each of these ways; `loose` is a difference that is allowed in any case."""
    torch.set_num_threads(1)
    for closed in (False, True):
        own = [way for way in chosen if (way.others == "closed") == closed]
        if own:
            yield from _check(closed_over(sample) if closed else sample, own, loose)


def closed_over(sample: Sample) -> Sample:
    """The sample as a function of the tensor that is cut, which closes over the others."""
    others = [x.detach() for x in sample.tensors]

    def call(*given: Any) -> Any:
        filled = [given[-1] if i == sample.first else like(each, each) for i, each in enumerate(others)]
        return sample.call(*given[:-1], *filled)

    return replace(sample, call=call, tensors=(sample.tensors[sample.first],), first=0)


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
    except Exception as error:
        yield from (found(way, *outcome_of(error)) for way in chosen)
        return
    allowed = max(loose, allowance(sample))
    for way in chosen:
        try:
            errors, gathers = _compared(sample, recording, expected, way)
        except Exception as error:
            yield found(way, *outcome_of(error))
            continue
        if described(recording.returned) != expected.form:
            errors["structure of the outputs"] = float("inf")
        name, worst = max(errors.items(), key=lambda pair: pair[1], default=("", 0.0))
        if worst > allowed:
            allowed = max(allowed, sensitivity(sample, expected))
        if worst > allowed:
            yield found(way, "wrong", f"{name}: {worst:.1e}", worst)
        else:
            yield found(way, "gathered" if gathers else "equal", "; ".join(gathers), worst)


def allowance(sample: Sample) -> float:
    """The error that rounding may cause in any case."""
    return max([EXACT, *(_factor(x) * torch.finfo(x.dtype).eps for x in _rounded(sample) if not _is_exact(x))])


def _rounded(sample: Sample) -> list[Tensor]:
    return [x for x in sample.tensors if x.is_floating_point() or x.is_complex()]


def _factor(x: Tensor) -> float:
    return COARSE.get(x.dtype, SENSITIVITY)


def _is_exact(x: Tensor) -> bool:
    return x.dtype in (torch.float64, torch.complex128)


def recorded(sample: Sample) -> Recording:
    likes = [InputSpec(tuple(x.shape), x.dtype, x.device, x.requires_grad, format_of(x)) for x in sample.tensors]
    _, tree = flatten((tuple(sample.tensors), {}))
    roots = {} if sample.module is None else {"": sample.module}
    return record(sample.of(sample.module), roots, likes, tree, sample.operator)


def format_of(x: Tensor) -> torch.memory_format:
    """The memory format in which a model gets a tensor."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    return last if not x.is_contiguous() and x.is_contiguous(memory_format=last) else torch.contiguous_format


def _compared(sample: Sample, recording: Recording, expected: Expected, way: Way) -> tuple[dict[str, float], list[str]]:
    """The largest error of any worker by name, and what is gathered."""
    with agreement(False), patch.object(placing, "SMALL", 0):
        found = workers.on_threads(
            way.workers, lambda transport: on_worker(transport, sample, recording, expected, way)
        )
    errors: dict[str, float] = {}
    for each, _ in found:
        for name, error in each.items():
            errors[name] = max(error, errors.get(name, 0.0))
    return errors, gathered(found[0][1])


def gathered(report: Report) -> list[str]:
    """What is gathered without need; a tensor whose dims the operator combines has to be whole."""
    return sorted({f"{each.operator}: {without_sizes(each.reason)}" for each in report.gathers if not each.combines})


def on_worker(
    transport: Any, sample: Sample, recording: Recording, expected: Expected, way: Way
) -> tuple[dict[str, float], Report]:
    """How far this worker's blocks are from their parts of what is expected, by name, and the report of the program."""
    torch.set_num_threads(1)
    grid, rank = Grid(tuple(range(transport.size)), way.shape), transport.rank
    layouts = [_layout_of(sample, i, way) for i in range(len(sample.tensors))]
    program = placing.place(recording, layouts, CartesianPartition(transport, grid))
    blocks = [
        like(x, x.detach()[_box(layout, rank)]).requires_grad_(x.requires_grad)
        for x, layout in zip(sample.tensors, layouts, strict=True)
    ]
    module = copy.deepcopy(sample.module)
    parameters = {} if module is None else dict(module.named_parameters())
    buffers = {} if module is None else dict(module.named_buffers())
    with sequential_random(torch.Generator().manual_seed(SEED)):
        outputs = program(parameters, buffers, blocks)
    boxes = [_box(each.layout if isinstance(each, Cut) else None, rank) for each in program.outputs]
    errors = {}
    for i, (y, whole, box) in enumerate(zip(outputs, expected.outputs, boxes, strict=True)):
        has_values = "empty" not in sample.operator  # whatever lies in memory
        errors[f"output {i}"] = difference(y, whole, box) if has_values else _unlike(y, whole[box])
        if whole.requires_grad != y.requires_grad:
            errors[f"whether output {i} needs a gradient"] = float("inf")
    backward(outputs, [g[box] for g, box in zip(expected.cotangents, boxes, strict=True)])
    for i, (x, whole, layout) in enumerate(zip(blocks, expected.tensors, layouts, strict=True)):
        if whole.requires_grad:
            errors[f"gradient of tensor {i}"] = difference(x.grad, whole.grad, _box(layout, rank))
    wholes = expected.held()
    errors |= {name: difference(x, wholes[name], ...) for name, x in held_by(module).items()}
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
    if got.dtype.itemsize == 1:  # of eight bits: torch cannot calculate with them
        got, part, whole = got.float(), part.float(), whole.float()
    same = (got == part) | (got.isnan() & part.isnan())
    scale = whole.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1.0)
    apart = ((got - part).abs() / scale).nan_to_num(float("inf")).masked_fill(same, 0.0)
    return float(apart.max())


def sensitivity(sample: Sample, expected: Expected) -> float:
    """The error that is as much as what a change of the inputs by some units in the last place of each changes."""
    other = Expected(sample, NOISE)
    pairs = [*zip(other.outputs, expected.outputs, strict=True)]
    pairs += [(a.grad, b.grad) for a, b in zip(other.tensors, expected.tensors, strict=True)]  # type: ignore[misc]
    pairs += zip(other.held().values(), expected.held().values(), strict=True)  # type: ignore[arg-type]
    changed = max((error for a, b in pairs if (error := difference(a, b, ...)) < float("inf")), default=0.0)
    return changed * min((_factor(x) for x in _rounded(sample)), default=SENSITIVITY)


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one of those by which Gridwise refuses what it cannot do."""
    return isinstance(error, GridwiseError) and not isinstance(error, InternalError | FaultError)


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """What an error makes of a case, and why."""
    return ("refused", reason_of(error)) if is_refusal(error) else ("wrong", f"{type(error).__name__}: {error}")


def reason_of(error: BaseException) -> str:
    """Why something is refused, without the sizes and lines of this case."""
    lines = [line.strip() for line in str(error).splitlines()]
    found = [line for line in lines if not line.startswith("fix:")]
    text = found[1] if len(found) > 1 and "cannot be distributed" in found[0] else found[0]
    text = re.sub(r",? *\w+\.py:\d+, in \w+:  .*?\*\*kwargs\)", "", text)
    return without_sizes(text.rstrip(": "))


def without_sizes(text: str) -> str:
    return re.sub(r"\(\d[\d, ]*\)", "(...)", text)[:300]
