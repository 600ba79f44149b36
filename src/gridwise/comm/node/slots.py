"""Two slots for the messages from one worker to another, and the tensors that lie in them.

A program makes the same movements in every step, so the same shapes lie at the same places of a slot again and again: the
views of them are made once. Slots are memory of the host (`segment`) or of a device (`device_box`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..messages.packing import Views, parts

MOST_PARTS = 256
"""For how many messages of different shapes the places are remembered."""


class Slots:
    """Two slots of `size` bytes each, one after the other in `memory`."""

    def __init__(self, memory: Tensor, size: int) -> None:
        self._memory, self._size = memory, size
        self._parts: dict[tuple[object, ...], list[Tensor]] = {}

    def bytes(self, turn: int) -> Tensor:
        """A slot as bytes."""
        return self._memory[turn * self._size : (turn + 1) * self._size]

    def parts(self, turn: int, dtype: torch.dtype, views: Views) -> list[Tensor]:
        """Where the views lie in a slot, one after the other, each in its shape."""
        key = turn, dtype, *[view.shape for view in views]
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) >= MOST_PARTS:
                self._parts.clear()
            volume = sum([view.numel() for view in views])
            found = self._parts[key] = parts(self.bytes(turn).view(dtype)[:volume], views)
        return found
