"""The shapes of all blocks of a tensor on a grid, whatever they are."""

from __future__ import annotations

import numpy as np

from gridwise.partition import Partition

from ...utilities.torch import TensorStructure
from .communicator import Communicator
from .partition import plain


def compute_subtensor_shapes_unbalanced(
    local_tensor_structure: TensorStructure, P_in: Partition, P_out: Partition | None = None
) -> np.ndarray | None:
    """An array [*P_in.shape, dim] of everybody's shape; None on a worker of neither partition."""
    inside = plain(P_in)
    outside = inside if P_out is None else inside.create_partition_union(plain(P_out))
    if not (inside.active or outside.active):
        return None
    shape = [int(n) for n in np.atleast_1d(np.asarray(local_tensor_structure.shape))] if inside.active else []
    said = _everybody(outside, shape)
    rows = [said[rank] for rank in inside.ranks]
    return np.array(rows, dtype=int).reshape(*inside.grid.shape, len(rows[0]))


def _everybody(partition: Partition, shape: list[int]) -> dict[int, list[int]]:
    return dict(zip(partition.ranks, Communicator(partition).allgather(shape), strict=True))
