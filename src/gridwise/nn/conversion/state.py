"""What is known of a value in the graph: where a tensor lies, and which of its extents are the same as which others.

    OnGrid     a tensor in balanced blocks on a partition with one axis for each of its dims
    Whole      a parameter or buffer, or what is made of these alone: all of it on every worker
    Several    a tuple of tensors that lie alike: what `chunk` returns
    Parts      a tuple of tensors that do not: what a recurrent layer returns

Extents are numbers where the model says them, and otherwise symbols: two dims with one symbol have one extent, whatever it
will be. Dims with different symbols may be of one extent all the same, or of extent 1: only the call can tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ...grid import Grid
from ...partition import CartesianPartition, Partition


class Symbol:
    """An extent that is not known before the call; equal to itself only."""


Extent = int | Symbol


@dataclass(frozen=True)
class OnGrid:
    """A tensor in blocks: its partition, and its extents."""

    P: Partition
    extents: tuple[Extent, ...]

    @classmethod
    def unknown(cls, P: Partition) -> OnGrid:
        return cls(P, tuple(Symbol() for _ in P.shape))

    @property
    def dim(self) -> int:
        return self.P.dim

    def is_cut(self, dims: Iterable[int]) -> bool:
        return any(self.P.shape[d] > 1 for d in dims)

    def with_extents(self, new: dict[int, Extent]) -> OnGrid:
        return replace(self, extents=tuple(new.get(d, extent) for d, extent in enumerate(self.extents)))

    def with_whole(self, dims: Sequence[int]) -> OnGrid | None:
        """With these dims whole, their workers along the first other dim, the batch as a rule; None without another."""
        others = [d for d in range(self.dim) if d not in dims]
        if not others:
            return None
        shape = [1 if d in dims else p for d, p in enumerate(self.P.shape)]
        shape[others[0]] *= math.prod(self.P.shape[d] for d in dims)
        return replace(self, P=self.P.create_cartesian_topology_partition(shape))

    def permuted(self, order: Sequence[int]) -> OnGrid:
        """With the dims in another order: every worker keeps its block."""
        shape = tuple(self.P.shape[d] for d in order)
        grid, ranks = self.P.grid, []
        for place in range(grid.size):
            at, index = place, [0] * self.dim
            for d in reversed(order):
                at, index[d] = divmod(at, self.P.shape[d])
            ranks.append(grid.rank_at(index))
        moved = CartesianPartition(self.P.transport, Grid(tuple(ranks), shape))
        return OnGrid(moved, tuple(self.extents[d] for d in order))

    def reshaped(self, first: int, last: int, extents: Sequence[Extent]) -> OnGrid:
        """With the whole dims ``[first, last)`` replaced by others, whole too."""
        shape = (*self.P.shape[:first], *(1,) * len(extents), *self.P.shape[last:])
        P = CartesianPartition(self.P.transport, Grid(self.P.ranks, shape))
        return OnGrid(P, (*self.extents[:first], *extents, *self.extents[last:]))


@dataclass(frozen=True, eq=False)
class Whole:
    """A tensor that every worker has all of: its extents and, where all are known, one like it without memory."""

    extents: tuple[Extent, ...]
    like: Tensor | None = None

    @classmethod
    def of(cls, like: Tensor) -> Whole:
        return cls(tuple(like.shape), like)


@dataclass(frozen=True)
class Several:
    """Tensors that lie alike."""

    each: OnGrid
    count: int | None = None
    """None: only the call can tell."""
    uneven: int | None = None
    """The dim along which they may differ in extent."""

    def one(self) -> OnGrid:
        """Any one of them."""
        return self.each if self.uneven is None else self.each.with_extents({self.uneven: Symbol()})


@dataclass(frozen=True)
class Parts:
    """A tuple of tensors of which each lies as it likes; `kind` is its class."""

    kind: type
    each: tuple[State, ...]


@dataclass(frozen=True)
class Lost:
    """What comes after something that cannot be converted: nothing is known of it."""


State = OnGrid | Whole | Several | Parts | Lost | None
"""None: not a tensor."""


def product_of(extents: Sequence[Extent]) -> Extent:
    """The extent of several dims as one; a new symbol unless all are known."""
    known = [extent for extent in extents if isinstance(extent, int)]
    return math.prod(known) if len(known) == len(extents) else Symbol()
