"""Parameters that a model uses outside of its layers: whole on every worker of the grid, nothing on the others.

They stay where they are in the model, so names are those of the sequential one, and know that they are blocks, so that
checkpoints, `clip_grad_norm_` and `check_replicas` take them for what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...comm.transports.base import Transport
from ...deferred_init import is_deferred, materialize_shard
from ...partition import Partition
from ..parameters.blocks import BlockParameter, BlockTensor, Spread, holders_of_blocks


def hold(model: torch.nn.Module, names: Sequence[str], P: Partition) -> None:
    """Let the parameters of these names be held by the workers of `P`; one with several names stays one."""
    known = dict(model.named_parameters(remove_duplicate=False))
    wanted = {id(known[name]): known[name] for name in names}
    kept = {key: _held(value, P) for key, value in wanted.items()}
    for name, value in known.items():
        if id(value) not in kept:
            continue
        parent, _, own = name.rpartition(".")
        module, (parameter, spread) = model.get_submodule(parent), kept[id(value)]
        module._parameters[own] = parameter
        if "_spreads" not in module.__dict__:
            know(module, {}, P.transport)
        module.__dict__["_spreads"][own] = spread


def _held(value: torch.nn.Parameter, P: Partition) -> tuple[BlockParameter, Spread]:
    """What this worker holds of a parameter."""
    transport = P.transport
    spread = Spread(P.grid, (None,) * value.dim(), tuple(value.shape))
    box = spread.block(transport.rank)
    if is_deferred(value):
        slices = box.slices if box is not None else (slice(0, 0),) * min(value.dim(), 1)
        block = materialize_shard(value, slices).detach()
    else:
        block = spread.cut(value.data, transport.rank).clone()
    kept = BlockParameter(_nothing(block) if box is None else block, value.requires_grad)
    spread.label(kept, transport)
    return kept, spread


def know(module: torch.nn.Module, spreads: dict[str, Spread], transport: Transport) -> None:
    """Let states of `module` be saved and loaded as those of one that holds parameters so."""
    module.__dict__["_spreads"] = spreads
    holders_of_blocks[module] = transport
    module._register_load_state_dict_pre_hook(partial(_cut, spreads, transport.rank))
    module._register_state_dict_hook(partial(_labelled, spreads, transport))


def _cut(spreads: dict[str, Spread], rank: int, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Of a global value, this worker's part."""
    for name, spread in spreads.items():
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and tuple(value.shape) == spread.shape:
            state[prefix + name] = value if rank in spread.holders else _nothing(spread.cut(value, rank))


def _nothing(value: Tensor) -> Tensor:
    """No part of a value: of a single number too, which would otherwise stay what it was while the others learn."""
    return value if value.dim() else value.reshape(1)[:0]


def _labelled(
    spreads: dict[str, Spread],
    transport: Transport,
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    *rest: Any,
) -> None:
    """Let values in a state know what they are blocks of."""
    for name, spread in spreads.items():
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and not isinstance(value, BlockParameter | BlockTensor):
            state[prefix + name] = value = value.as_subclass(BlockTensor)
            spread.label(value, transport)
