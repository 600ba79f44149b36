"""The state of a distributed model: parameters and buffers, whole on every worker of the grid and empty on the others.

They stay where they are in the model, so their names are those of the sequential model. They are labelled as blocks, so
that checkpoints, `clip_grad_norm_` and `check_replicas` treat them correctly. Parameters stay the same objects: models that
share one still do, and an optimiser made earlier moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..comm.transports.base import Transport
from ..deferred_init import is_deferred, materialize_shard
from ..errors import PartitionError
from ..nn.parameters import saved_blocks
from ..nn.parameters.blocks import (
    BlockParameter,
    BlockTensor,
    Sharding,
    holders_of_blocks,
    is_cut,
    sharding_over,
)
from ..partition import Partition
from ..torch_internals.modules import add_state_hooks


def replicate_parameters(models: Iterable[torch.nn.Module], P: Partition) -> None:
    """Hold the parameters of models, which share them, on all workers of `P` and on no others; the objects stay the same.

    Deferred ones, on workers that do not hold them, are replaced in all of these models.
    """
    kept: dict[int, tuple[Tensor, Tensor]] = {}  # the key is an id: the original must stay alive
    for module in (module for model in models for module in model.modules()):
        for name, value in module._parameters.items():
            if value is not None:
                if id(value) not in kept:
                    kept[id(value)] = value, _parameter_held_by(P, value)
                module._parameters[name] = kept[id(value)][1]  # type: ignore[assignment]


def _parameter_held_by(P: Partition, value: Tensor) -> Tensor:
    if is_cut(value):
        return value
    sharding = _sharding(value, P)
    if is_deferred(value):
        value = BlockParameter(_no_block(value), value.requires_grad)
    if type(value) is torch.nn.Parameter:
        value.__class__ = BlockParameter  # a new object would not be the one that an optimiser has, or another model
    if not P.active and value.numel():
        value.data, value.grad = _nothing(sharding.cut(value.data, P.transport.rank)).clone(), None
    sharding.label(cast(BlockParameter, value), P.transport)
    return value


def _no_block(value: Tensor) -> Tensor:
    return _nothing(materialize_shard(value, (slice(0, 0),) * min(value.dim(), 1)).detach())


def _sharding(value: Tensor, P: Partition) -> Sharding:
    if is_cut(value):
        return sharding_over(value, P.geometry)
    known = value.sharding if isinstance(value, BlockParameter) else None
    shape = tuple(value.shape) if known is None else known.shape
    return Sharding(P.geometry, (None,) * len(shape), shape)


def replicate_state(twin: torch.nn.Module, P: Partition) -> None:
    """Let a copy of a model, which shares its parameters, hold its buffers and its state as blocks too."""
    everywhere = P.geometry.size == P.transport.size
    kept: dict[int, tuple[Tensor, BlockTensor]] = {}
    for module in twin.modules():
        shardings = {name: _sharding(value, P) for name, value in module._parameters.items() if value is not None}
        for name, value in module._buffers.items():
            if value is None or everywhere:
                continue
            shardings[name] = _sharding(value, P)
            if id(value) not in kept:
                kept[id(value)] = value, _buffer_held_by(P, value, shardings[name])
            module._buffers[name] = kept[id(value)][1]
        if shardings:
            module.__dict__["_shardings"] = shardings
            add_state_hooks(
                module, partial(_cut, shardings, P.transport.rank), partial(_labelled, shardings, P.transport)
            )
            if any(map(is_cut, module._parameters.values())):
                holders_of_blocks[module] = P.transport


def renew_shardings(roots: Iterable[torch.nn.Module], transport: Transport) -> None:
    """Take the shapes of parameters and buffers that were replaced by others of another shape; refuse those of cut ones."""
    for module in (module for root in roots for module in root.modules()):
        shardings: dict[str, Sharding] = module.__dict__.get("_shardings", {})
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            sharding = shardings.get(name)
            if value is None or sharding is None or is_deferred(value):
                continue
            is_whole = sharding.layout.grid.size == 1
            if not is_whole and tuple(value.shape) != (held := _shape_held(sharding, transport.rank)):
                raise PartitionError(
                    f"`{name}`, which is cut, was replaced by {tuple(value.shape)}; this worker's block is {held}.",
                    fix="replace parameters before `distribute`, or assign a block of the same shape.",
                )
            if is_whole and value.numel() and tuple(value.shape) != sharding.shape:
                shardings[name] = Sharding(sharding.holders, (None,) * value.dim(), tuple(value.shape))
                if isinstance(value, BlockParameter | BlockTensor):
                    shardings[name].label(value, transport)


def _shape_held(sharding: Sharding, rank: int) -> tuple[int, ...]:
    block = sharding.block(rank)
    return (0, *sharding.shape[1:]) if block is None else block.shape


def _buffer_held_by(P: Partition, value: Tensor, sharding: Sharding) -> BlockTensor:
    if P.active:
        block = value.data
    else:
        block = _no_block(value) if is_deferred(value) else _nothing(sharding.cut(value.data, P.transport.rank).clone())
    held = block.as_subclass(BlockTensor)
    sharding.label(held, P.transport)
    return held


def _cut(
    shardings: dict[str, Sharding],
    rank: int,
    state: dict[str, Any],
    prefix: str,
    metadata: Mapping[str, Any],
    *rest: object,
) -> None:
    """Replace global values in a state by this worker's part; refuse other workers' parts."""
    saved = metadata.get(saved_blocks.KEY, {})
    for name, sharding in shardings.items():
        value = state.get(prefix + name)
        if not isinstance(value, Tensor):
            continue
        if sharding.layout.grid.size > 1:
            saved_blocks.check(prefix + name, value, saved.get(name), sharding, rank)
        if tuple(value.shape) == sharding.shape:
            part = sharding.cut(value, rank)
            state[prefix + name] = part if rank in sharding.holders else _nothing(part)


def _nothing(value: Tensor) -> Tensor:
    """An empty value, for a scalar too: a scalar left on this worker would keep its value while the others train."""
    return value if value.dim() else value.reshape(1)[:0]


def _labelled(
    shardings: dict[str, Sharding],
    transport: Transport,
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    *rest: object,
) -> None:
    """Label the values in a state as blocks, and note which they are."""
    for name, sharding in shardings.items():
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and not isinstance(value, BlockParameter | BlockTensor):
            state[prefix + name] = value = value.as_subclass(BlockTensor)
            sharding.label(value, transport)
    cut = {name: sharding for name, sharding in shardings.items() if sharding.layout.grid.size > 1}
    saved_blocks.note(state, prefix, cut, transport.rank)
