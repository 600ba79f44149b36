"""Runs a random change to a layer (`random_changes`), and compares the layer with torch's own, changed alike."""

from __future__ import annotations

import copy
import json
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from random_changes import NOT_OFFERED, WITH_PARAMETERS, Block, Kind, Trial, Whole
from torch import Tensor

import gridwise
from gridwise.errors import GridwiseError
from gridwise.grid import Grid, Layout


def attempt(trial: Trial, seed: int) -> str:
    """'equal' or 'refused', the same on all workers; raises AssertionError on all of them otherwise."""
    world = gridwise.world()
    try:
        mine = _run(trial, seed, world)
    except AssertionError as error:
        mine = f"wrong: {error}"
    transport = world.transport
    told = [json.loads(part) for part in transport.gather_bytes(json.dumps(mine).encode(), world.team, "outcomes")]
    kinds = {text.partition(":")[0] for text in told}
    assert kinds in ({"equal"}, {"refused"}), f"{trial}\n  " + "\n  ".join(dict.fromkeys(told))
    return kinds.pop()


def _run(trial: Trial, seed: int, world: Any) -> str:
    P = world.create_cartesian_topology_partition(trial.grid)
    inputs = _inputs(trial.kind, seed)
    sequential, layer = _made(trial.kind, None, seed), _made(trial.kind, P, seed)
    for module in (sequential, layer):
        module.train(trial.trains)
    if trial.called_before:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _called(sequential, inputs, torch.float64)
        _called(layer, _cut(inputs, P), torch.float64)
    partly = len(trial.on) < world.size
    expected: Any = None
    reference = sequential
    words = ""
    try:
        if world.rank in trial.on:
            trial.change(layer, Block(layer))
    except (GridwiseError, TypeError, KeyError, ValueError, AttributeError, RuntimeError) as error:
        words = f"{type(error).__name__}: {error}"
    refused = world.transport.gather_bytes(bytes([bool(words)]), world.team, "refusals")
    if any(part[0] for part in refused):  # at once, where it was set: nobody has to be told
        return "refused"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if partly:
                reference = _partly_changed(trial, sequential, layer, inputs)
            else:
                trial.change(sequential, Whole())
            expected = _called(reference, inputs, trial.dtype)
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
            by_torch = f"{type(error).__name__}: {error}"
    found = None
    try:
        found = _called(layer, _cut(inputs, P), trial.dtype)
    except GridwiseError as error:
        words = str(error)
    if found is None:
        offered = trial.attribute in layer._settings and not any(reason in words for reason in NOT_OFFERED)
        assert expected is None or partly or not offered, f"torch takes this, we do not: {words}"
        return "refused"
    assert expected is not None, f"torch refuses this, we do not: {by_torch}"
    _compare(trial, P, reference, layer, expected, found)
    return "equal"


def _partly_changed(
    trial: Trial, sequential: torch.nn.Module, layer: Any, inputs: tuple[Tensor, ...]
) -> torch.nn.Module:
    """Torch's layer after a change on some workers, where there is such a thing; raises ValueError where there is none."""
    changed, before = copy.deepcopy(sequential), copy.deepcopy(sequential)
    trial.change(changed, Whole())
    if ": " not in trial.words or trial.words.endswith("None"):
        pairs = zip(*(_called(module, inputs, trial.dtype).outputs for module in (changed, before)), strict=True)
        wants = [[p.requires_grad for p in module.parameters()] for module in (changed, before)]
        if any(_differ(y, expected, "") for y, expected in pairs) or wants[0] != wants[1]:
            raise ValueError("no layer of torch's is half changed")
        return sequential  # it changes nothing
    for name, sharding in layer._shardings.items():
        before, after = sequential.state_dict()[name], changed.state_dict()[name]
        for rank in range(gridwise.world().size):
            if torch.equal(before, after) or sharding.block(rank) is None:
                continue
            if {other in trial.on for other in sharding.replicas(rank)} == {True, False}:
                raise ValueError("replicas differ")
            if rank in trial.on:
                slices = sharding.block(rank).slices
                before[slices] = after[slices]
    return sequential


def _made(chosen: Kind, P: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    dtype = {"dtype": torch.float64} if any(word in chosen.layer for word in WITH_PARAMETERS) else {}
    if P is not None:
        return getattr(gridwise.nn, f"Distributed{chosen.layer}")(P, *chosen.args, **chosen.kwargs, **dtype)
    if "Dropout" in chosen.layer:  # whose mask is that of any grid: that of one worker
        world = gridwise.world()
        alone = world.create_partition_inclusive([world.rank]).create_cartesian_topology_partition(
            [1] * len(chosen.shape)
        )
        return getattr(gridwise.nn, f"Distributed{chosen.layer}")(alone, *chosen.args, **chosen.kwargs)
    return getattr(torch.nn, chosen.layer)(*chosen.args, **chosen.kwargs, **dtype)


def _inputs(chosen: Kind, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(chosen.shape, dtype=torch.float64, generator=generator)
    if chosen.layer == "MaxUnpool2d":
        return torch.nn.functional.max_pool2d(
            torch.randn(2, 4, 12, 10, generator=generator).double(), 2, return_indices=True
        )
    if chosen.layer == "NLLLoss":
        return x.log_softmax(1), torch.randint(0, 4, (2, 6, 5), generator=generator)
    if "Loss" in chosen.layer:
        return x, torch.rand(chosen.shape, dtype=torch.float64, generator=generator)
    return (x,)


def _cut(inputs: tuple[Tensor, ...], P: Any) -> tuple[Tensor, ...]:
    return tuple(x[_block(P, x.shape, inputs[0].dim())] for x in inputs)


def _block(P: Any, shape: tuple[int, ...], dims: int) -> tuple[slice, ...]:
    """This worker's part of a tensor with all dims of the grid, or without the channels."""
    grid = P.geometry if len(shape) == dims else Grid(P.ranks, (P.shape[0], *P.shape[2:]))
    return Layout.balanced(grid, tuple(shape)).block(gridwise.world().rank).slices


@dataclass
class Called:
    x: Tensor
    outputs: tuple[Tensor, ...]


def _called(module: torch.nn.Module, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> Called:
    x, *rest = (v.to(dtype) if v.is_floating_point() else v for v in inputs)
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    y = module(x * 1, *rest)  # not the leaf itself, which may not be changed in place
    return Called(x, y if isinstance(y, tuple) else (y,))


def _compare(trial: Trial, P: Any, sequential: Any, layer: Any, expected: Called, found: Called) -> None:
    """All of the outputs and gradients; what differs is raised when all workers have been through all of it."""
    wrong: list[str] = []
    y, y_seq = found.outputs[0], expected.outputs[0]
    assert len(found.outputs) == len(expected.outputs), "another number of outputs"
    if y_seq.dim():
        blocks = [_block(P, tuple(out.shape), len(P.shape)) for out in expected.outputs]
        for mine, whole, block in zip(found.outputs, expected.outputs, blocks, strict=True):
            wrong += _differ(mine, whole[block], "output")
        dy = torch.randn(y_seq.shape, generator=torch.Generator().manual_seed(4)).to(y_seq.dtype)
        assert y.requires_grad == y_seq.requires_grad, "a gradient where torch has none, or none where it has"
        if y_seq.requires_grad:
            y_seq.backward(dy)
            y.backward(dy[blocks[0]] if not wrong else torch.zeros_like(y))
    else:
        wrong += _differ(y, y_seq, "loss")
        y_seq.backward()
        y.backward()
    if expected.x.grad is not None:
        wrong += _differ(
            found.x.grad, expected.x.grad[_block(P, tuple(expected.x.shape), len(P.shape))], "input gradient"
        )
    own, cut = dict(layer.named_parameters()) | dict(layer.named_buffers()), Block(layer)
    for name, value in (*sequential.named_parameters(), *sequential.named_buffers()):
        mine = own.get(name)
        if mine is None:
            wrong.append(f"no {name}")
            continue
        here = (lambda v, name=name: cut(name, v)) if name in cut.shardings else (lambda v: v)
        wrong += _differ(mine, here(value), name)
        if value.grad is not None:
            wrong += _differ(mine.grad, here(value.grad), f"gradient of {name}")
        elif mine.grad is not None:
            wrong.append(f"a gradient of {name}, which torch has not")
    assert not wrong, "; ".join(wrong)


def _differ(actual: Tensor | None, expected: Tensor, what: str) -> list[str]:
    if actual is None:
        return [f"no {what}"]
    near = {torch.float64: 1e-9, torch.float32: 1e-4}.get(expected.dtype, 3e-2)
    actual = actual.detach().as_subclass(Tensor)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return [f"{what}: {actual.dtype} {tuple(actual.shape)}, not {expected.dtype} {tuple(expected.shape)}"]
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() and expected.is_floating_point() else 1.0
    same = torch.allclose(actual.double(), expected.detach().double(), rtol=near, atol=near * scale, equal_nan=True)
    return [] if same else [f"{what} differs by {float((actual - expected).abs().max())}"]


def attempt_all(trials: dict[int, Trial]) -> dict[str, int]:
    """How many were equal and how many refused; what was neither is raised at the end, so that all stay in step."""
    counts, wrong = {"equal": 0, "refused": 0}, []
    for seed, trial in trials.items():
        try:
            counts[attempt(trial, seed)] += 1
        except AssertionError as error:
            wrong.append(f"{seed}: {error}")
    assert not wrong, f"{len(wrong)} of {len(trials)} trials went wrong:\n" + "\n".join(wrong)
    assert math.isclose(sum(counts.values()), len(trials))
    return counts
