"""A fetched box as a stack: margins, own rows and received rows follow one another along one dim.

So it is for a grid that cuts a single dim of space. One call of torch puts the box together then, where room for it, its
margins and each piece in its place take one call each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..grid import Interval, Route

OWN = -1


@dataclass
class Stack:
    """How to put a box together: which received piece comes where, and how many rows of margin are before and after."""

    dim: int
    order: list[int]
    """Numbers of received pieces, and `OWN`."""
    margins: list[tuple[int, ...]]
    """The shapes of the margins before and after; some are empty."""
    fill: float
    _filled: dict[torch.dtype, list[Tensor]] = field(default_factory=dict)

    @classmethod
    def planned(cls, plan: Route, margins: Sequence[Interval], fill: float) -> Stack | None:
        """For a route whose worker keeps its whole block; None where the pieces are no stack."""
        if plan.needed is None or plan.owned is None or len(plan.kept) != 1:
            return None
        if plan.kept[0].source.shape != plan.owned.shape:
            return None
        shape = plan.needed.shape
        pieces = [plan.kept[0].target, *(piece.target for message in plan.receives for piece in message.pieces)]
        dims = {d for d, n in enumerate(shape) if any(piece.shape[d] != n for piece in pieces)}
        dims |= {d for d, margin in enumerate(margins) if any(margin)}
        if len(dims) != 1:
            return None
        (dim,) = dims
        order = sorted(range(len(pieces)), key=lambda i: pieces[i].start[dim])
        around = margins[dim] if margins else (0, 0)
        return cls(dim, [i - 1 for i in order], [(*shape[:dim], n, *shape[dim + 1 :]) for n in around], fill)

    def of(self, x: Tensor, received: Sequence[Tensor]) -> Tensor:
        """The box, of the own block and the received pieces."""
        before, after = self._filled.get(x.dtype) or self._fill(x.dtype)
        rows = [x if i == OWN else received[i] for i in self.order]
        if self.margins[0][self.dim]:
            rows.insert(0, before)
        if self.margins[1][self.dim]:
            rows.append(after)
        return torch.cat(rows, self.dim)

    def _fill(self, dtype: torch.dtype) -> list[Tensor]:
        with torch.inference_mode(False):
            made = [torch.full(shape, self.fill, dtype=dtype, device="cpu") for shape in self.margins]
        return self._filled.setdefault(dtype, made)
