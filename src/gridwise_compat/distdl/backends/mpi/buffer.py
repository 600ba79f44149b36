"""DistDL's message buffers. Layers take them from a manager, but leave them empty: torch's allocator does the work here.

The buffers of a halo exchange and of a repartition are for scripts that send their own messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike

from gridwise.errors import PartitionError

from ...utilities.dtype import torch_to_numpy_dtype_dict
from ...utilities.slicing import compute_nd_slice_shape

Overlap = tuple[Any, Any, Any]


class MPIExpandableBuffer:
    """A piece of memory that can grow, with arrays of any shape that begin at its start."""

    def __init__(self, dtype: DTypeLike, initial_capacity: int = 0) -> None:
        self.dtype = dtype
        self.capacity = int(initial_capacity)
        self.raw_buffer = np.empty(self.capacity, dtype=dtype)
        self.views: dict[tuple[int, ...], np.ndarray] = {}

    def expand(self, new_capacity: int) -> None:
        """Make room for `new_capacity` numbers; the contents are kept."""
        if new_capacity <= self.capacity:
            return
        old, self.raw_buffer, self.capacity = self.raw_buffer, np.empty(new_capacity, self.dtype), int(new_capacity)
        self.raw_buffer[: old.size] = old
        self.views = {shape: self._view(shape) for shape in self.views}

    def allocate_view(self, shape: Sequence[int]) -> None:
        key = tuple(int(n) for n in shape)
        self.expand(int(np.prod(key)))
        self.views[key] = self._view(key)

    def get_view(self, shape: Sequence[int]) -> np.ndarray:
        key = tuple(int(n) for n in shape)
        if key not in self.views:
            self.allocate_view(key)
        return self.views[key]

    def _view(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.raw_buffer[: int(np.prod(shape))].reshape(shape)


Buffers = list[MPIExpandableBuffer | None]


class MPIBufferManager:
    """Buffers by dtype; every request gets the same first ones."""

    def __init__(self) -> None:
        self.buffers_map: dict[Any, list[MPIExpandableBuffer]] = {}

    def request_buffers(self, n_buffers: int, dtype: type[np.generic], **kwargs: int) -> list[MPIExpandableBuffer]:
        found = self.buffers_map.setdefault(dtype, [])
        found += [MPIExpandableBuffer(dtype, **kwargs) for _ in range(n_buffers - len(found))]
        return found[:n_buffers]


def check_manager(manager: object) -> MPIBufferManager | None:
    """`manager`; raises, as DistDL's layers do, if it is something other than a buffer manager."""
    if manager is None or type(manager) is MPIBufferManager:
        return manager
    raise PartitionError("Buffer manager type does not match backend.")


def hold_buffers(manager: MPIBufferManager | None, count: int, dtype: torch.dtype) -> None:
    """Let `manager` have as many buffers as DistDL's layer would use; they stay empty."""
    if manager is not None and count and dtype in torch_to_numpy_dtype_dict:
        manager.request_buffers(count, torch_to_numpy_dtype_dict[dtype])


def allocate_halo_exchange_buffers(
    buffer_manager: MPIBufferManager,
    slices: Sequence[Sequence[Sequence[slice]]],
    recv_buffer_shape: ArrayLike,
    send_buffer_shape: ArrayLike,
    dtype: torch.dtype,
) -> list[Buffers]:
    """For each dim the buffers of left bulk, left ghost, right bulk and right ghost; None for an empty one.

    Dims are exchanged one after the other, so all of them share four buffers.
    """
    four = buffer_manager.request_buffers(4, dtype=torch_to_numpy_dtype_dict[dtype])
    send, recv = np.asarray(send_buffer_shape), np.asarray(recv_buffer_shape)
    found: list[Buffers] = []
    for d, regions in enumerate(slices):
        widths = send[d, 0], recv[d, 0], send[d, 1], recv[d, 1]
        found.append([buffer if width > 0 else None for buffer, width in zip(four, widths, strict=True)])
        for buffer, region in zip(found[-1], regions, strict=True):
            if buffer is not None:
                buffer.allocate_view(compute_nd_slice_shape(region).tolist())
    return found


def allocate_repartition_buffers(
    buffer_manager: MPIBufferManager,
    P_x_to_y_overlaps: Sequence[Overlap],
    P_y_to_x_overlaps: Sequence[Overlap],
    dtype: torch.dtype,
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
