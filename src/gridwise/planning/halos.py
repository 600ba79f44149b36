"""Halos: the box of a layer's input that a worker fetches around its own block, noted while a plan runs the layer.

Layers with a window get their input through a `Fetch`, whose route knows both boxes. While fetches are observed, its
`__call__` is replaced by one that reports each call, as a trace does with methods of a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from torch import Tensor

from ..grid import Box, Layout, Route
from ..nn.windows.fetch import Fetch


@dataclass(frozen=True)
class LayerHalo:
    """What a worker fetches for a layer."""

    layout: Layout
    """How the layer's input is cut."""
    owned: Box
    needed: Box

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        """For each dim, how many rows it needs before and after its block; negative where it needs only part of it."""
        mine, box = self.owned, self.needed
        return tuple((a - b, d - c) for a, b, c, d in zip(mine.start, box.start, mine.stop, box.stop, strict=True))


@contextmanager
def observed_fetches(listener: Callable[[Route], None]) -> Iterator[None]:
    """Report the route of every fetch while the body runs."""
    plain = Fetch.__call__

    def observed(self: Fetch, x: Tensor) -> Tensor:
        listener(self.plan)
        return plain(self, x)

    with patch.object(Fetch, "__call__", observed):
        yield
