"""One training step of one pretended worker, recorded: forward, loss, backward and optimiser, on meta tensors.

distribute the model on the counting transport    construction is not part of the step
forward, loss, backward                           the code that real workers run
the optimiser, twice                              the first step creates its states, the second is like every later one
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..comm.transports.counting import CountingTransport, Entry, Ledger
from ..costs.machine import Machine
from ..errors import PartitionError
from ..grid import Layout
from ..models import DistributedModel, distribute
from ..models.distribute import ParametersOption
from ..models.model import runner_of
from ..models.recorder import Run
from ..models.recording import Recording
from ..models.recording.containers import flatten
from ..partition import Partition
from .halos import LayerHalo
from .layer_names import OUTSIDE
from .memory import Holder, Moment
from .recorder import StepRecorder, Work
from .report import BACKWARD, FORWARD, OPTIMISER, Worker

Loss = Callable[[Partition, Any], Tensor]
Optimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class OptimiserStep:
    """What a step of the optimiser costs."""

    states: int = 0
    work: Work | None = None
    peak: int = 0
    """Bytes that it needs temporarily."""


@dataclass
class PlannedStep:
    """The step to plan, on any grid; recordings of the model are kept for the next grid."""

    model: torch.nn.Module
    """On the meta device."""
    shape: tuple[int, ...]
    machine: Machine
    """Decides whose allocator is modelled: that of the CPU, or of CUDA."""
    dtype: torch.dtype = torch.float32
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    parameters: ParametersOption = "whole"
    recordings: list[Recording] = field(default_factory=list)
    optimised: dict[Hashable, OptimiserStep] = field(default_factory=dict)
    """By the shapes of the parameters, which are mostly the same on all workers."""


@dataclass(frozen=True)
class StepRecord:
    """What one worker does in a step."""

    worker: Worker
    work: Mapping[tuple[str, str], Work]
    """By layer and phase."""
    curve: tuple[Moment, ...]
    """Memory over the step, beyond parameters, buffers, the input and the states of the optimiser."""
    holders: tuple[Holder, ...]
    """Which layers hold it at the peak."""
    layouts: Mapping[str, Layout]
    """How the outputs of layers are cut, in the order of the layers."""
    halos: Mapping[str, LayerHalo]
    """What it fetches around its blocks, by layer."""
    names: tuple[str, ...]
    """All layers in order."""


def step(task: PlannedStep, P_x: Partition) -> StepRecord:
    """Run the step as this worker of `P_x`, whose transport counts, and return the record."""
    transport = P_x.transport
    assert isinstance(transport, CountingTransport)
    ledger, rank = transport.ledger, transport.rank
    placed = distribute(
        copy.deepcopy(task.model), P_x, parameters=task.parameters
    )  # each worker has parameters of its own
    ledger.entries[rank].clear()
    layout = Layout.balanced(P_x.geometry, task.shape)
    x = torch.empty(layout.block(rank).shape, dtype=task.dtype)
    ledger.expect(task.shape)
    held = [*placed.parameters(), *placed.buffers()]
    record = StepRecorder([*held, x], task.machine.device)
    record.layers.input_layout = rank, layout
    _prepare_apart(placed, task.recordings, record)
    with record:
        record.phase = ledger.phase = FORWARD
        y = placed(x)
        if task.loss is not None:
            _expect_outputs(ledger, placed, task.recordings[0])
            y = task.loss(placed.P_y, y)
            if not isinstance(y, Tensor):
                raise PartitionError(
                    f"plan: `loss` must return a tensor, from which backward starts; it returned {y!r}."
                )
        kept = record.memory.allocated
        record.phase = ledger.phase = BACKWARD
        ends = [tensor for tensor in flatten(y)[0] if tensor.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.empty_like(tensor) for tensor in ends])
        del y, ends
    parameters = list(placed.parameters())
    optimised = _optimised(task, parameters)
    if optimised.work is not None:
        record.work[OUTSIDE, OPTIMISER] = optimised.work
        record.memory.at = OUTSIDE, OPTIMISER
        record.memory.add((), optimised.peak)
    memory, layers = record.memory, record.layers
    worker = _summary(
        ledger.entries[rank],
        rank=rank,
        index=P_x.index or (),
        parameters=memory.size_of(held),
        gradients=memory.size_of(p for p in parameters if p.requires_grad),
        states=optimised.states,
        activations=kept,
        memory=memory.size_of([*held, x]) + optimised.states + memory.peak,
    )
    curve, holders = tuple(memory.curve()), tuple(memory.holders())
    memory.close()
    return StepRecord(
        worker, dict(record.work), curve, holders, dict(layers.layouts), dict(layers.halos), tuple(layers.names)
    )


def _summary(entries: Sequence[Entry], **held: Any) -> Worker:
    """The worker that holds this, with what it sends and receives."""
    moved = [entry for entry in entries if entry.kind != "control"]
    return Worker(
        **held,
        fetched=sum(entry.received for entry in moved if entry.phase == FORWARD),
        sent=sum(entry.nbytes for entry in moved),
        received=sum(entry.received for entry in moved),
        messages=sum(entry.kind == "message" for entry in moved),
        sums=sum(entry.kind in ("sum", "copy") for entry in moved),
        control=sum(entry.nbytes for entry in entries if entry.kind == "control"),
    )


def _optimised(task: PlannedStep, parameters: list[torch.nn.Parameter]) -> OptimiserStep:
    """What a step of the optimiser costs; run once for parameters of the same shapes."""
    if task.optimizer is None or not parameters:
        return OptimiserStep()
    key = tuple([(p.shape, p.dtype, p.grad is not None) for p in parameters])
    if key not in task.optimised:
        record = StepRecorder(device=task.machine.device)
        with torch.device("cpu"):  # its step counter needs a value
            optimizer = task.optimizer(parameters)
            if task.machine.device == "cuda":
                _as_on_cuda(optimizer)
            optimizer.step()
            states = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
            if task.machine.device != "cpu":
                states = [x for x in states if x.device.type == "meta"]  # step counters stay on the host
            record.memory.ignore([*parameters, *states, *(p.grad for p in parameters if p.grad is not None)])
            record.phase = OPTIMISER
            with record:
                optimizer.step()
        size = record.memory.size_of({id(x): x for x in states}.values())
        task.optimised[key] = OptimiserStep(size, record.work[OUTSIDE, OPTIMISER], record.memory.peak)
        record.memory.close()
    return task.optimised[key]


def _as_on_cuda(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimiser update all parameters in one call (`foreach`), as torch's do on CUDA by default."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


def meta_copy(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model, deferred or not, on the meta device; no data are copied."""
    memo: dict[int, Any] = {}
    plain = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    for tensor in [*model.parameters(), *model.buffers(), *plain]:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    return copy.deepcopy(model, memo)


def _prepare_apart(placed: DistributedModel, recordings: list[Recording], record: StepRecorder) -> None:
    """Let the first pretended worker record the model, and the others reuse its recording.

    Recording and placing the model is not part of a step, so operators called meanwhile are not counted.
    """
    runner: Any = runner_of(placed)
    record_model, prepare = runner.record, runner._prepared

    def recorded(*args: object) -> Recording:
        if not recordings:
            recordings.append(record_model(*args))
        return recordings[0]

    def prepared(*args: object) -> Run:
        record.paused = True
        try:
            return prepare(*args)
        finally:
            record.paused = False

    runner.record, runner._prepared = recorded, prepared


def _expect_outputs(ledger: Ledger, model: DistributedModel, recording: Recording) -> None:
    """Declare the output shapes that a loss asks about; several outputs, in any order, are told apart by their blocks."""
    (output,) = (node for node in recording.module.graph.nodes if node.op == "output")
    shapes = [tuple(leaf.meta["val"].shape) for leaf in output.args[0]]
    if len(shapes) == 1:
        ledger.expect(shapes[0])
        return
    partitions = flatten(model.P_y, lambda part: isinstance(part, Partition))[0]
    ledger.expect()
    ledger.layouts = [
        Layout.balanced(P.geometry, shape) for P, shape in product(partitions, shapes) if P.dim == len(shape)
    ]
