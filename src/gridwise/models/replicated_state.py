"""The state of a distributed model: parameters and buffers, whole on every worker of the grid and empty on the others.

They stay where they are in the model, so their names are those of the sequential model. They are labelled as blocks, so
that checkpoints, `clip_grad_norm_` and `check_replicas` treat them correctly.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..comm.transports.base import Transport
from ..deferred_init import is_deferred, materialize_shard
from ..nn.parameters.blocks import BlockParameter, BlockTensor, Spread
from ..partition import Partition


def replicate_state(model: torch.nn.Module, P: Partition) -> None:
    """Replicate all parameters and buffers over the workers of `P`; a shared tensor stays shared."""
    everywhere = P.grid.size == P.transport.size
    kept: dict[int, tuple[Tensor, Tensor, Spread]] = {}  # the key is an id: the original must stay alive
    for module in model.modules():
        spreads: dict[str, Spread] = {}
        every: tuple[dict[str, Any], ...] = module._parameters, module._buffers
        for tensors in every:
            for name, value in tensors.items():
                if value is None or (tensors is module._buffers and everywhere and not is_deferred(value)):
                    continue
                if id(value) not in kept:
                    kept[id(value)] = value, *_replicated(value, P)
                _, tensors[name], spreads[name] = kept[id(value)]
        if spreads:
            module.__dict__["_spreads"] = spreads
            module._register_load_state_dict_pre_hook(partial(_cut, spreads, P.transport.rank))
            module._register_state_dict_hook(partial(_labelled, spreads, P.transport))


def _replicated(value: Tensor, P: Partition) -> tuple[Tensor, Spread]:
    """This worker's part of a tensor, and the tensor's `Spread`."""
    transport = P.transport
    spread = Spread(P.grid, (None,) * value.dim(), tuple(value.shape))
    box = spread.block(transport.rank)
    if is_deferred(value):
        slices = box.slices if box is not None else (slice(0, 0),) * min(value.dim(), 1)
        block = materialize_shard(value, slices).detach()
    else:
        block = value.data if box is not None else spread.cut(value.data, transport.rank).clone()
    block = _nothing(block) if box is None else block
    kept: BlockParameter | BlockTensor
    if isinstance(value, torch.nn.Parameter):
        kept = BlockParameter(block, value.requires_grad)
    else:
        kept = block.as_subclass(BlockTensor)
    spread.label(kept, transport)
    return kept, spread


def _cut(spreads: dict[str, Spread], rank: int, state: dict[str, Any], prefix: str, *rest: object) -> None:
    """Replace global values in a state by this worker's part."""
    for name, spread in spreads.items():
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and tuple(value.shape) == spread.shape:
            state[prefix + name] = value if rank in spread.holders else _nothing(spread.cut(value, rank))


def _nothing(value: Tensor) -> Tensor:
    """An empty value, for a scalar too: a scalar left on this worker would keep its value while the others train."""
    return value if value.dim() else value.reshape(1)[:0]


def _labelled(
    spreads: dict[str, Spread],
    transport: Transport,
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    *rest: object,
) -> None:
    """Label the values in a state as blocks."""
    for name, spread in spreads.items():
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and not isinstance(value, BlockParameter | BlockTensor):
            state[prefix + name] = value = value.as_subclass(BlockTensor)
            spread.label(value, transport)
