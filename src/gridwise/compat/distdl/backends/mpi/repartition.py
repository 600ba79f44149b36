"""Buffers for the messages of a repartition, for those who make their own: Gridwise's layers need none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...utilities.dtype import torch_to_numpy_dtype_dict
from .buffer import MPIBufferManager, MPIExpandableBuffer

Overlap = tuple[Any, Any, Any]
Buffers = list[MPIExpandableBuffer | None]


def allocate_repartition_buffers(
    buffer_manager: MPIBufferManager,
    P_x_to_y_overlaps: Sequence[Overlap],
    P_y_to_x_overlaps: Sequence[Overlap],
    dtype: Any,
) -> tuple[Buffers, Buffers]:
    """A buffer for each overlap (slices, shape, partner) with another worker; None for the rest."""
    both = P_x_to_y_overlaps, P_y_to_x_overlaps
    away = [[slices is not None and partner != "self" for slices, _, partner in overlaps] for overlaps in both]
    free = iter(buffer_manager.request_buffers(sum(map(sum, away)), dtype=torch_to_numpy_dtype_dict[dtype]))
    found: list[Buffers] = []
    for overlaps, wanted in zip(both, away, strict=True):
        found.append([next(free) if needed else None for needed in wanted])
        for buffer, (_, shape, _) in zip(found[-1], overlaps, strict=True):
            if buffer is not None:
                buffer.allocate_view(shape)
    return found[0], found[1]
