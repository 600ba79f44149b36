"""Which block of which tensor: what users write as slices, a callable or layouts, made into ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from gridwise.deferred_init.filling import Ranges
from gridwise.errors import PartitionError, describe

Slices = Sequence[slice]


class Blocks(Protocol):
    """What is asked of a layout of `gridwise.grid`: the box of each worker's block."""

    def block(self, rank: Any, /) -> Any: ...


Layout = Callable[[str, torch.Size], Slices | None] | Mapping[str, Blocks]


def slices_for(layout: Layout, rank: Any, name: str, shape: torch.Size) -> Slices | None:
    """What `layout` says of a tensor: its slices, or None for all of it."""
    if callable(layout):
        return layout(name, shape)
    if rank is None:
        raise PartitionError(
            describe(
                "materialize_module: `layout` is a mapping of layouts, and `rank` was not given.", fix="give rank=..."
            )
        )
    blocks = layout.get(name)
    return None if blocks is None else blocks.block(rank).slices


def ranges_of(slices: Slices | Any, shape: Sequence[int], name: str) -> Ranges:
    """Start and stop along every dim; raises for what is no block."""
    slices = tuple(getattr(slices, "slices", slices))
    if len(slices) > len(shape):
        raise PartitionError(
            describe(
                f"A block of {name} was asked for with {len(slices)} slices; it has {len(shape)} dims, {tuple(shape)}.",
                fix="give at most one slice per dim.",
            )
        )
    ranges = []
    for dim, size in enumerate(shape):
        chosen = slices[dim] if dim < len(slices) else slice(None)
        if not isinstance(chosen, slice) or chosen.step not in (None, 1):
            raise PartitionError(
                describe(
                    f"A block of {name} was asked for with {chosen!r} along dim {dim}: a block is a slice of step 1.",
                    fix="use slice(start, stop).",
                )
            )
        start, stop, _ = chosen.indices(size)
        ranges.append((start, max(start, stop)))
    return tuple(ranges)
