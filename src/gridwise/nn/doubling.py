"""Linear interpolation to twice as many rows: what torch's kernels for `bilinear` do by index, done by whole rows.

    forward    y[2i] = (3 x[i] + x[i - 1]) / 4,   y[2i + 1] = (3 x[i] + x[i + 1]) / 4        rows outside are those of the edge
    adjoint    x[i] = (3 (y[2i] + y[2i + 1]) + y[2i - 1] + y[2i + 2]) / 4                    where such rows are

Even and odd rows are views of the output, so that each is one call over whole rows; torch's kernel on the CPU looks every
element up, and adds every element of a gradient to four places. How much that is: benchmarks/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .fetch import memory_format_of

LEAST = 1 << 15
"""Elements from which this is faster than torch's kernel."""


@dataclass(frozen=True)
class Doubling:
    """Along one dim, rows whose doubles are the outputs; of its neighbours, one `before` them and one `after` may be there.

    Examples
    --------
    >>> Doubling(False, False).take(torch.tensor([[0.0, 4.0]]), 1)
    tensor([[0., 1., 3., 4.]])
    """

    before: bool
    after: bool

    def take(self, x: Tensor, dim: int) -> Tensor:
        """Interpolate `x` along `dim`."""
        return _Taken.apply(x, self, dim, False)

    def doubled(self, x: Tensor, dim: int) -> Tensor:
        size = x.shape[dim]
        n = size - self.before - self.after
        y = rows_like(x, dim, 2 * n)
        own = x.narrow(dim, int(self.before), n) * 0.75
        for half in (0, 1):
            out = half_of(y, dim, half)
            for at, row, count in self._neighbours(n, size, half):
                place, neighbours = out.narrow(dim, at, count), x.narrow(dim, row, count)
                torch.add(own.narrow(dim, at, count), neighbours, alpha=0.25, out=place)
        return y

    def halved(self, y: Tensor, dim: int) -> Tensor:
        """The adjoint of `doubled`."""
        n = y.shape[dim] // 2
        size = n + self.before + self.after
        x = rows_like(y, dim, size)
        torch.add(half_of(y, dim, 0), half_of(y, dim, 1), out=x.narrow(dim, int(self.before), n)).mul_(0.75)
        for row in [0] * self.before + [size - 1] * self.after:
            x.narrow(dim, row, 1).zero_()
        for half in (0, 1):
            part = half_of(y, dim, half)
            for at, row, count in self._neighbours(n, size, half):
                x.narrow(dim, row, count).add_(part.narrow(dim, at, count), alpha=0.25)
        return x

    def _neighbours(self, n: int, size: int, half: int) -> list[tuple[int, int, int]]:
        """Which rows take which of x for their neighbours: the first of each, and how many; at an edge, that of the edge."""
        first = int(self.before) + (1 if half else -1)
        start, stop = max(first, 0), min(first + n, size)
        found = [(start - first, start, stop - start)]
        if first < 0:
            found.append((0, 0, 1))
        if first + n > size:
            found.append((n - 1, size - 1, 1))
        return found


def rows_like(like: Tensor, dim: int, rows: int) -> Tensor:
    shape = (*like.shape[:dim], rows, *like.shape[dim + 1 :])
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format_of(like))


def half_of(y: Tensor, dim: int, half: int) -> Tensor:
    """The even rows, or the odd ones."""
    return y[(*(slice(None),) * dim, slice(half, None, 2))]


class _Taken(torch.autograd.Function):
    """`doubled`, or its adjoint `halved`: each is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, doubling: Doubling, dim: int, back: bool) -> Tensor:
        ctx.how = doubling, dim, not back
        return doubling.halved(x, dim) if back else doubling.doubled(x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Taken.apply(gradient, *ctx.how), None, None, None
