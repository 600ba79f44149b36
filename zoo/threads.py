"""One model on four workers that are threads of this process: recorded once, placed and run four times.

The programs are those of real workers, only the messages go through memory; a machine with few cores looks at every model in a
fraction of the time. What it leaves out is the first call of `distribute` itself, which the run on processes has.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from tests.models import threads as workers
from torch import Tensor

import gridwise
from gridwise.grid import Grid, Layout
from gridwise.models.placement import Cut
from gridwise.models.placing import place
from gridwise.models.recording.containers import flatten
from gridwise.models.recording.record import record
from gridwise.models.recording.recording import Recording
from gridwise.models.recording.state import modules_of, tensors_of
from gridwise.models.recording.tracing import InputSpec
from gridwise.nn.engine.agreement import agreement
from gridwise.partition import CartesianPartition

from .catalogue import Specimen
from .check import Finding, Step, counted, judge, specimen_of

workers.PATIENCE = 900.0  # seconds for which one waits for another, on a machine that has much to do


def check(name: str) -> Finding:
    """What came of the model of that name."""
    specimen = specimen_of(name)
    found = Finding(specimen.name, specimen.kind, workers="threads")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model = specimen.build().double().train()
    except Exception as error:
        found.outcome, found.text = "failed", f"cannot be built: {error}"
        return found
    x = specimen.input()
    start = time.perf_counter()
    try:
        recording = recorded(model, x, specimen)
        with agreement(False):
            steps = workers.on_threads(4, lambda transport: _step(transport, model, recording, x, specimen, found))
    except gridwise.errors.GridwiseError as error:
        found.text = str(error)
        return found
    found.first = time.perf_counter() - start
    whole = steps[0]
    for i, y in enumerate(whole.outputs):
        layout = whole.layouts[i]
        if layout is not None:
            whole.outputs[i] = _joined([step.outputs[i] for step in steps], layout, y.dtype)
    whole.of_input = _joined([step.of_input for step in steps], whole.layouts[-1], x.dtype)
    judge(found, model, specimen, whole, max(step.flops for step in steps), max(step.saved for step in steps))
    return found


def recorded(model: torch.nn.Module, x: Tensor, specimen: Specimen) -> Recording:
    _, tree = flatten(((x,), specimen.others()))
    likes = [
        InputSpec(tuple(each.shape), each.dtype, each.device, each is x)
        for each in flatten(((x,), specimen.others()))[0]
    ]
    return record(lambda *args, **kwargs: model(*args, **kwargs), {"": model}, likes, tree, specimen.name)


def _step(
    transport: Any, model: torch.nn.Module, recording: Recording, x: Tensor, specimen: Specimen, found: Finding
) -> Step:
    torch.set_num_threads(1)
    grid = Grid(tuple(range(4)), specimen.grid)
    layout = Layout.balanced(grid, x.shape)
    others = flatten(((x,), specimen.others()))[0][1:]
    program = place(recording, [layout, *(None for _ in others)], CartesianPartition(transport, grid))
    if transport.rank == 0:
        found.note(program.report)
    own: dict[int, Tensor] = {}  # parameters share the numbers, not the gradients; buffers are changed
    for p in model.parameters():
        own[id(p)] = p.detach().requires_grad_(p.requires_grad)
    for b in model.buffers():
        own[id(b)] = b.clone()
    all_parameters = {name: own[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    all_buffers = {name: own[id(b)] for name, b in model.named_buffers(remove_duplicate=False)}
    attributes = {each.name: each.value for each in tensors_of(modules_of({"": model}))}  # tensors that are neither
    held = {**attributes, **all_buffers, **all_parameters}
    block = x.detach()[layout.block(transport.rank).slices].clone().requires_grad_()

    def forward() -> list[Tensor]:
        with gridwise.sequential_random(torch.Generator().manual_seed(1)):
            return program(all_parameters, held, [block, *others])

    parameters, buffers = (  # each once, as the sequential model names them
        {name: own[id(value)] for name, value in named} for named in (model.named_parameters(), model.named_buffers())
    )
    step = counted(forward, parameters, buffers, block)
    step.layouts = [each.layout if isinstance(each, Cut) else None for each in program.outputs] + [layout]
    return step


def _joined(blocks: list[Tensor], layout: Any, dtype: torch.dtype) -> Tensor:
    whole = torch.empty(layout.global_shape, dtype=dtype)
    for rank, box in layout.blocks():
        whole[box.slices] = blocks[rank]
    return whole
