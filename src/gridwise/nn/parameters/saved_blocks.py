"""What a state dict records about its blocks, so that a saved block is not taken for another one.

    state._metadata["conv"]["blocks"]["weight"]  =  {"shape": (8, 3, 3, 3), "start": (4, 0, 0, 0), "stop": (8, 3, 3, 3),
                                                     "worker": 1}

These are numbers and tuples beside the versions that torch keeps there: they are pickled and copied with the state, and
`torch.load` reads them with `weights_only=True`, even where Gridwise is not installed. Whole tensors have no entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import PartitionError
from ...grid import Box
from .blocks import BlockParameter, BlockTensor, Sharding

KEY = "blocks"


def note(state: dict[str, Any], prefix: str, shardings: Mapping[str, Sharding], rank: int) -> None:
    """Record in the metadata of `state` which of a layer's tensors are blocks, and which blocks they are."""
    metadata = getattr(state, "_metadata", {}).get(prefix[:-1], {})
    blocks = {}
    for name, sharding in shardings.items():
        box = sharding.block(rank)
        if prefix + name not in state or box == Box.of_shape(sharding.shape):
            continue
        start, stop = (None, None) if box is None else (box.start, box.stop)
        blocks[name] = {"shape": sharding.shape, "start": start, "stop": stop, "worker": rank}
    if blocks:
        metadata[KEY] = blocks


def check(name: str, value: Tensor, saved: Mapping[str, Any] | None, sharding: Sharding, rank: int) -> None:
    """Raise if `value`, by its label or by its `saved` entry, is a block other than that of worker `rank`."""
    mine = sharding.block(rank)
    if isinstance(value, BlockTensor | BlockParameter) and value.placement is not None:
        shape, box, owner = value.placement.global_shape, value.block, ""
    elif saved is not None:
        shape, owner = tuple(saved["shape"]), f", saved by worker {saved['worker']}"
        box = None if saved["start"] is None else Box(tuple(saved["start"]), tuple(saved["stop"]))
        if value.numel() if box is None else tuple(value.shape) != box.shape:
            return  # it has been replaced, perhaps by a whole tensor
    else:
        return
    if box != mine or shape != sharding.shape:
        raise PartitionError(
            f"{name} in this state dict is {_part(box)} of a tensor of shape {shape}{owner}; worker {rank} holds "
            f"{_part(mine)} of one of shape {sharding.shape}.",
            fix="save and load with gridwise.checkpoint, or save gridwise.nn.full_state_dict(model), which loads on any "
            "grid and into the torch model.",
        )


def _part(box: Box | None) -> str:
    if box is None:
        return "no part"
    return f"the block [{', '.join(f'{a}:{b}' for a, b in zip(box.start, box.stop, strict=True))}]"
