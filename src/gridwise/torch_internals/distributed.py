"""Of `torch.distributed`: whole checkpoints, blocks of its tensors, and states of hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from torch.distributed._shard.sharded_tensor.api import ShardedTensor
    from torch.distributed.tensor import DTensor
except ImportError:  # a torch that was built without torch.distributed
    ShardedTensor = DTensor = None  # type: ignore[assignment, misc]

__all__ = ["DTensor", "ShardedTensor"]


def read_whole(path: Path) -> dict[str, Any]:
    """The state in a folder of torch.distributed.checkpoint, on one worker, without knowing what it holds."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    _load_state_dict(state, FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def local_part(x: DTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of this worker's part of a DTensor, and where it starts."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, start = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return tuple(shape), tuple(start)
