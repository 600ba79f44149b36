"""A fetched box put together by one call of torch, where its pieces are a stack (`grid.stacking`).

Otherwise room for the box, its margins and each piece in its place take one call each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...grid import OWN, Stacking


class Stack:
    """Stacks the worker's block and received pieces, in margins of `fill`."""

    def __init__(self, stacking: Stacking, fill: float) -> None:
        self.stacking, self.fill = stacking, fill
        self._margins: dict[torch.dtype, list[Tensor]] = {}

    def of(self, x: Tensor, received: Sequence[Tensor]) -> Tensor:
        """The box, from the worker's block and the received pieces."""
        before, after = self._margins.get(x.dtype) or self._filled(x.dtype)
        rows = [x if i == OWN else received[i] for i in self.stacking.order]
        if before.numel():
            rows.insert(0, before)
        if after.numel():
            rows.append(after)
        return torch.cat(rows, self.stacking.dim)

    def _filled(self, dtype: torch.dtype) -> list[Tensor]:
        shapes = self.stacking.before, self.stacking.after
        with torch.inference_mode(False):  # they outlive the call that needs them first
            made = [torch.full(shape, self.fill, dtype=dtype, device="cpu") for shape in shapes]
        return self._margins.setdefault(dtype, made)
