"""The structure of a global tensor from those of its blocks, and the shapes of all blocks, balanced or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gridwise.nn.engine.agreement import agree_layout
from gridwise.partition import Partition

from ...utilities.torch import TensorStructure
from .communicator import Communicator
from .partition import plain


def assemble_global_tensor_structure(
    local_tensor_structure: TensorStructure, P_in: Partition, P_out: Partition | None = None
) -> TensorStructure:
    """The global structure of a tensor with blocks on `P_in`, for the workers of `P_in`, and of `P_out` if given."""
    inside = plain(P_in)
    team = inside.team if P_out is None else tuple(sorted({*inside.team, *plain(P_out).team}))
    whole = TensorStructure()
    if inside.transport.rank not in team:
        return whole
    block = torch.empty(0)
    if inside.active:  # a block of that structure, for which one number is allocated
        shape = tuple(int(n) for n in np.atleast_1d(np.asarray(local_tensor_structure.shape)))
        block = torch.empty((), dtype=local_tensor_structure.dtype).expand(shape)
        block.requires_grad_(bool(local_tensor_structure.requires_grad))
    layout, agreed = agree_layout(inside.transport, team, "assemble_global_tensor_structure", inside.geometry, block)
    whole.shape, whole.dtype = torch.Size(layout.global_shape), agreed.dtype
    whole.requires_grad = agreed.requires_grad
    return whole


def broadcast_tensor_structure(structure: TensorStructure, P_send: Partition, P_recv: Partition) -> TensorStructure:
    """The structure of the first worker of `P_send`, on all workers of `P_recv`."""
    structure_sent: Any = (structure.shape, structure.dtype, structure.requires_grad)
    result = TensorStructure()
    teams = {each.ranks: each for each in (P_send, P_recv) if each.active}
    for _, team in sorted(teams.items()):
        received = team._comm.bcast(structure_sent if team.rank == 0 else None, 0)  # type: ignore[attr-defined]
        if team is P_recv or team.ranks == P_recv.ranks:
            result.shape, result.dtype, result.requires_grad = received
    return result


def compute_subtensor_shapes_unbalanced(
    local_tensor_structure: TensorStructure, P_in: Partition, P_out: Partition | None = None
) -> np.ndarray | None:
    """The shapes of all blocks as an array [*P_in.shape, dim]; None on a worker in neither partition."""
    inside = plain(P_in)
    outside = inside if P_out is None else inside.create_partition_union(plain(P_out))
    if not (inside.active or outside.active):
        return None
    shape = [int(n) for n in np.atleast_1d(np.asarray(local_tensor_structure.shape))] if inside.active else []
    shapes = dict(zip(outside.ranks, Communicator(outside).allgather(shape), strict=True))
    rows = [shapes[rank] for rank in inside.ranks]
    return np.array(rows, dtype=int).reshape(*inside.geometry.shape, len(rows[0]))
