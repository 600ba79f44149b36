"""Windows along one dim: the rows that a range of outputs sees, and how torch pads what is read of them.

rows that are read      those inside the tensor
padding                 torch pads both ends alike, so where the end lacks more rows than the start, windows are
                        computed that begin before the wanted ones; their outputs are dropped
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ...grid import Box, Interval, window_need


@dataclass(frozen=True)
class Windows:
    """The windows along a dim of `extent` rows, padded by `before`."""

    kernel: int
    stride: int
    before: int
    dilation: int
    extent: int

    @cached_property
    def span(self) -> int:
        """From the first row of a window to its last."""
        return self.dilation * (self.kernel - 1) + 1

    def need(self, start: int, stop: int) -> Interval:
        """The rows of the tensor that the outputs see; none where they see padding only."""
        first, last = window_need((start, stop), self.kernel, self.stride, self.before, self.dilation)
        first, last = max(0, first), min(last, self.extent)
        return (first, last) if first < last else (0, 0)

    def lacking(self, start: int, stop: int) -> Interval:
        """How many rows that the outputs see are before and after those of the tensor."""
        first, last = window_need((start, stop), self.kernel, self.stride, self.before, self.dilation)
        return max(0, -first), max(0, last - self.extent)

    def padding(self, start: int, stop: int) -> Interval:
        """The padding with which torch makes these outputs of the rows that they need, and how many before them."""
        before, after = self.lacking(start, stop)
        surplus = -(-max(0, after - before) // self.stride)
        return before + surplus * self.stride, surplus


def needed(windows: Sequence[Windows], box: Box, lead: int) -> Iterable[Interval]:
    """For the dims of space of an output's box, the rows that it sees."""
    return [w.need(a, b) for w, a, b in zip(windows, box.start[lead:], box.stop[lead:], strict=True)]


Crops = Sequence[tuple[int, int, int]]
"""For each of some dims, the outputs of a box among those that torch makes: how many come before, and how many they are."""


def crops_of(surplus: Sequence[int], box: Box, lead: int) -> Crops:
    """The outputs of the box, after `surplus` others along each dim of space."""
    return [(d, first, n) for d, (first, n) in enumerate(zip(surplus, box.shape[lead:], strict=True), lead)]


def cropped(y: Tensor, crops: Crops) -> Tensor:
    for d, first, n in crops:
        if y.shape[d] != n:
            y = y.narrow(d, first, n)
    return y


def each(size: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """A size for each dim, from one number or from as many as there are dims."""
    sizes = tuple(size) if isinstance(size, Sequence) else (size,)
    return sizes * dims if len(sizes) == 1 else sizes
