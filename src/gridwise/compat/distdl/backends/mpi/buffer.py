"""DistDL's message buffers: layers accept a manager, and keep no memory in it. Torch's allocator is the manager here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridwise.errors import PartitionError


class MPIExpandableBuffer:
    """One piece of memory that grows, and arrays of any shape that begin at its start."""

    def __init__(self, dtype: Any, initial_capacity: int = 0) -> None:
        self.dtype = dtype
        self.capacity = int(initial_capacity)
        self.raw_buffer = np.empty(self.capacity, dtype=dtype)
        self.views: dict[tuple[int, ...], np.ndarray] = {}

    def expand(self, new_capacity: int) -> None:
        """Make room for that many numbers; the contents are kept."""
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


class MPIBufferManager:
    """Buffers by their dtype, the first ones first."""

    def __init__(self) -> None:
        self.buffers_map: dict[Any, list[MPIExpandableBuffer]] = {}

    def request_buffers(self, n_buffers: int, dtype: object, **kwargs: Any) -> list[MPIExpandableBuffer]:
        found = self.buffers_map.setdefault(dtype, [])
        found += [MPIExpandableBuffer(dtype, **kwargs) for _ in range(n_buffers - len(found))]
        return found[:n_buffers]


def check_manager(manager: object) -> None:
    """Raise as DistDL's layers do where something else is given for a buffer manager."""
    if manager is not None and type(manager) is not MPIBufferManager:
        raise PartitionError("Buffer manager type does not match backend.")
