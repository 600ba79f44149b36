"""Two slots for the messages from one worker to another, and cached tensor views of them.

A program makes the same movements in every step, so tensors of the same shapes occupy the same places of a slot again and
again: their views are made once. Slots are in host memory (`segment`) or on a device (`device_box`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..messages.packing import Views, parts, volume

MOST_PARTS = 256
"""The number of differently shaped messages whose views are cached."""


class Slots:
    """Two consecutive slots of `size` bytes each in `memory`."""

    def __init__(self, memory: Tensor, size: int) -> None:
        self._memory, self._size = memory, size
        self._parts: dict[tuple[object, ...], list[Tensor]] = {}

    def bytes(self, turn: int) -> Tensor:
        """A slot as bytes."""
        return self._memory[turn * self._size : (turn + 1) * self._size]

    def parts(self, turn: int, dtype: torch.dtype, views: Views) -> list[Tensor]:
        """The consecutive parts of a slot for these views, each in its view's shape."""
        key = turn, dtype, *[view.shape for view in views]
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) >= MOST_PARTS:
                self._parts.clear()
            found = self._parts[key] = parts(self.bytes(turn).view(dtype)[: volume(views)], views)
        return found
