"""One model on four workers against itself on one: outputs, gradients of the input and of parameters, buffers.

Runs on every worker. Worker 0 computes the sequential step, in float64; if that is not equal, once more with its input changed
by 1e-15 of itself: what that changes is what rounding may change. Random numbers are torch's own of one worker on both sides.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import gridwise
from gridwise.models.report import Report

from .catalogue import Specimen, specimens

EXACT = 1e-9
SINGLE = 1e-5
"""What is equal where a model computes in float32, whatever its input is."""
ALL = 0.9
"""The share of the operations from which a worker has as good as all of them: such a model counts as refused."""
SENSITIVITY = 100.0
"""How many times what a change of the input by 1e-15 causes may be the distributed error."""


@dataclass
class Finding:
    """What came of one model."""

    name: str
    kind: str
    outcome: str = "refused"
    """equal, wrong, refused or failed (not distributed at all, or not in the sequential model either)"""
    error: float = 0.0
    allowed: float = EXACT
    text: str = ""
    nodes: int = 0
    """How many operators the recorded model consists of."""
    flops: float = 0.0
    """The largest share of the sequential floating-point operations that a worker has."""
    saved: float = 0.0
    """The largest share of the sequential bytes saved for backward that a worker keeps."""
    gathers: list[str] = field(default_factory=list)
    without_rule: list[str] = field(default_factory=list)
    sequential: float = 0.0
    first: float = 0.0
    """Seconds of the sequential step, and of the first distributed one, with recording and placing."""
    workers: str = "processes"
    """What the workers were: processes, or threads."""
    torch: str = torch.__version__
    """Whose version it ran with."""

    def note(self, report: Report) -> None:
        self.nodes = report.operators
        self.gathers = sorted({gather.operator for gather in report.gathers})
        self.without_rule = sorted({gather.operator for gather in report.gathers if not gather.has_rule})


class Saved:
    """Bytes that autograd keeps for backward while the body runs, memory that several tensors share counted once."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._known = {t.untyped_storage().data_ptr() for t in known}
        self._seen: dict[int, int] = {}

    def __enter__(self) -> Saved:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda x: x)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return x

    @property
    def bytes(self) -> int:
        return sum(self._seen.values())


@dataclass
class Step:
    """Everything that a training step makes."""

    outputs: list[Tensor]
    of_input: Tensor
    of_parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    flops: int
    saved: int
    seconds: float
    layouts: list[Any] = field(default_factory=list)
    """Of the outputs and of the input, where they are blocks."""


def step(model: torch.nn.Module, x: Tensor, others: dict[str, Any], counts: bool = True) -> Step:
    """A forward and a backward pass of the sum of y^2 / 2 + 0.3 y over all outputs."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)

    def forward() -> Any:
        with gridwise.sequential_random():
            return model(x, **others)

    model.zero_grad()
    return counted(forward, dict(model.named_parameters()), dict(model.named_buffers()), x, counts)


def counted(
    forward: Callable[[], Any],
    parameters: dict[str, Tensor],
    buffers: dict[str, Tensor],
    x: Tensor,
    counts: bool = True,
) -> Step:
    """A step whose outputs `forward` makes of `x`, its operations and the bytes that it saves counted."""
    start = time.perf_counter()
    counter, saved = FlopCounterMode(display=False), Saved((*parameters.values(), *buffers.values()))
    with counter if counts else nullcontext():
        with saved if counts else nullcontext():
            made = forward()
        outputs = [y for y in tree_leaves(made) if isinstance(y, Tensor)]
        learning = [y for y in outputs if y.requires_grad]
        torch.autograd.backward(learning, [y.detach() + 0.3 for y in learning])
    seconds = time.perf_counter() - start
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    of_input = x.grad if x.grad is not None else torch.zeros_like(x)
    buffers = {name: b.clone() for name, b in buffers.items()}
    flops = counter.get_total_flops() if counts else 0
    return Step([y.detach() for y in outputs], of_input, gradients, buffers, flops, saved.bytes, seconds)


def specimen_of(name: str) -> Specimen:
    return next(each for each in specimens([name]) if each.name == name)


def check(name: str) -> dict[str, Any]:
    """What came of the model of that name, as worker 0 has found it; all workers enter."""
    specimen = specimen_of(name)
    found = Finding(specimen.name, specimen.kind)
    world = gridwise.world()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model = specimen.build().double().train()
    except Exception as error:
        found.outcome, found.text = "failed", f"cannot be built: {error}"
        return asdict(found)
    x, others = specimen.input(), specimen.others()
    P_x = world.create_cartesian_topology_partition(specimen.grid)
    try:
        distributed, block = gridwise.distribute(copy.deepcopy(model), P_x), gridwise.scatter(x, P_x)
        ours = step(distributed, block, others, counts=False)  # the counter hooks all modules, which cannot be recorded
    except gridwise.errors.GridwiseError as error:
        found.text = str(error)
        return asdict(found)
    found.first = ours.seconds
    found.note(distributed.report())
    partitions = list(tree_leaves(distributed.P_y, is_leaf=lambda P: P is None or isinstance(P, gridwise.Partition)))
    ours.outputs = [y if P is None else gridwise.gather(y, P) for y, P in zip(ours.outputs, partitions, strict=True)]
    ours.of_input = gridwise.gather(ours.of_input, P_x)
    mine = replace(ours, of_parameters={name: g.clone() for name, g in ours.of_parameters.items()})
    again = step(distributed, block, others)
    largest = np.array([again.flops, again.saved], dtype=np.int64)
    world.transport.all_max(largest, world.team)
    if world.rank == 0:
        judge(found, model, specimen, mine, int(largest[0]), int(largest[1]))
    return asdict(found)


def judge(found: Finding, model: torch.nn.Module, specimen: Specimen, ours: Step, flops: int, saved: int) -> None:
    """Compare a distributed step with the sequential one; `flops` and `saved` are those of the worker that has most."""
    x, others = specimen.input(), specimen.others()
    reference = step(copy.deepcopy(model), x, others)
    found.sequential = reference.seconds
    found.flops, found.saved = flops / max(1, reference.flops), saved / max(1, reference.saved)
    found.error = max(differences(ours, reference))
    if found.error > EXACT and computes_in_single(copy.deepcopy(model), x, others):
        found.allowed = SINGLE
    if found.error > found.allowed:
        noise = torch.randn(specimen.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        other = step(copy.deepcopy(model), x * (1 + 1e-15 * noise), others)
        found.allowed = max(found.allowed, SENSITIVITY * max(differences(other, reference)))
    found.outcome = "equal" if found.error <= found.allowed else "wrong"
    if found.outcome == "equal" and found.flops > ALL:
        found.outcome = "refused"
        found.text = f"it runs, but every worker computes {found.flops:.0%} of it"


class _Dtypes(TorchDispatchMode):
    """The dtypes of all that operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen |= {x.dtype for x in tree_leaves(made) if isinstance(x, Tensor) and x.numel() > 1}
        return made


def computes_in_single(model: torch.nn.Module, x: Tensor, others: dict[str, Any]) -> bool:
    """Whether a model in float64 computes something in float32."""
    with _Dtypes() as dtypes:
        model(x, **others)
    return torch.float32 in dtypes.seen


def differences(mine: Step, theirs: Step) -> Iterator[float]:
    """How far everything is apart, each relative to its own size."""
    yield (
        abs(len(mine.outputs) - len(theirs.outputs)) * float("inf") if len(mine.outputs) != len(theirs.outputs) else 0.0
    )
    pairs = [*list(zip(mine.outputs, theirs.outputs, strict=False)), (mine.of_input, theirs.of_input)]
    for name in theirs.of_parameters.keys() | mine.of_parameters.keys():
        zero = torch.zeros(())
        pairs.append((mine.of_parameters.get(name, zero), theirs.of_parameters.get(name, zero)))
    pairs += [(mine.buffers[name], theirs.buffers[name]) for name in theirs.buffers]
    for a, b in pairs:
        if a.shape != b.shape and a.numel() != 1 and b.numel() != 1:
            yield float("inf")
        elif b.numel():
            a, b = (t.to(torch.complex128) if t.is_complex() else t.double() for t in (a, b))
            apart = (a - b).abs().nan_to_num(nan=float("inf"))
            apart[torch.isnan(a.abs()) & torch.isnan(b.abs()) | (a == b)] = 0.0
            yield float(apart.max() / b.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-3))
