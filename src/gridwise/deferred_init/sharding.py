"""Which block of which tensor: turns the user's slices, callable or layouts into boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from gridwise.errors import PartitionError
from gridwise.grid import Box

Slices = Sequence[slice]


class Blocks(Protocol):
    """The protocol of a layout of `gridwise.grid` or anything like it: the box of each worker's block."""

    def block(self, rank: int, /) -> Any: ...


Layout = Callable[[str, torch.Size], Slices | None] | Mapping[str, Blocks]


def check_layout(layout: Layout, rank: int | None, names: Sequence[str]) -> None:
    """Raise if `layout` is neither kind of layout, or names tensors that the module does not have."""
    if callable(layout):
        return
    if not isinstance(layout, Mapping):
        raise PartitionError(
            f"materialize_module: `layout` (={layout!r}) is neither a function nor a mapping of layouts.",
            fix="give a function of name and shape that gives slices, or {name: layout} together with rank=...",
        )
    if rank is None:
        raise PartitionError(
            "materialize_module: `layout` is a mapping of layouts, and `rank` was not given.", fix="give rank=..."
        )
    unknown = [name for name in layout if name not in names]
    if unknown:
        raise PartitionError(
            f"materialize_module: `layout` cuts {', '.join(map(repr, unknown))}; the module has no such tensors.",
            fix=f"use names as in named_parameters() and named_buffers(): {', '.join(map(repr, names[:4]))}, ...",
        )


def slices_for(layout: Layout, rank: int | None, name: str, shape: torch.Size) -> Slices | None:
    """The slices that `layout` gives for a tensor, or None for all of it."""
    if callable(layout):
        return layout(name, shape)
    blocks = layout.get(name)
    if blocks is None:
        return None
    expected = tuple(getattr(blocks, "global_shape", shape))
    if expected != tuple(shape):
        raise PartitionError(
            f"materialize_module: the layout of {name} is for a tensor of {expected}; it is {tuple(shape)}.",
            fix="make the layout from the tensor's shape.",
        )
    assert rank is not None  # ensured by `check_layout`
    return blocks.block(rank).slices


def box_of(slices: Slices | Any, shape: Sequence[int], name: str) -> Box:
    """The box of these slices; raises if they are not a block."""
    slices = getattr(slices, "slices", slices)
    if not isinstance(slices, Sequence) or isinstance(slices, str):
        raise PartitionError(
            f"A block of {name} was asked for with {slices!r}, which is not a sequence of slices.",
            fix="give a tuple of one slice per dim, (slice(start, stop), ...).",
        )
    if len(slices) > len(shape):
        raise PartitionError(
            f"A block of {name} was asked for with {len(slices)} slices; it has {len(shape)} dims, {tuple(shape)}.",
            fix="give at most one slice per dim.",
        )
    ends = []
    for dim, size in enumerate(shape):
        chosen = slices[dim] if dim < len(slices) else slice(None)
        if not isinstance(chosen, slice) or chosen.step not in (None, 1):
            raise PartitionError(
                f"A block of {name} was asked for with {chosen!r} along dim {dim}: a block is a slice of step 1.",
                fix="use slice(start, stop).",
            )
        start, stop, _ = chosen.indices(size)
        ends.append((start, max(start, stop)))
    return Box.of_intervals(ends)
