"""Interior and boundary: which outputs of a window see only what a worker owns, and which have to wait for others.

    outputs         before |        interior         | after            of one dim
    they see      [ received |      own rows       | received ]

Along a dim of which the worker owns all that is seen, every output is interior, and padding is left to torch. Along the
others the outputs before and after the interior are *boundary*, in slabs that do not overlap: dim by dim, each inside the
interior of the dims before. What a slab sees may reach outside what was fetched, where torch would pad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .box import Box, Shape
from .cuts import Interval


@dataclass(frozen=True)
class Window:
    """Output j of a dim sees `extent` rows from ``stride j - padding`` on."""

    extent: int
    stride: int
    padding: int

    def sees(self, outputs: Interval) -> Interval:
        """
        >>> Window(extent=3, stride=2, padding=1).sees((0, 4))
        (-1, 8)
        """
        first, last = outputs
        return self.stride * first - self.padding, self.stride * (last - 1) - self.padding + self.extent

    def seeing_only(self, rows: Interval, outputs: int) -> Interval:
        """The outputs, out of so many, that see nothing but `rows`.

        >>> Window(extent=3, stride=1, padding=0).seeing_only((1, 9), outputs=8)
        (1, 7)
        """
        first = max(0, -(-(rows[0] + self.padding) // self.stride))
        last = min(outputs, (rows[1] + self.padding - self.extent) // self.stride + 1)
        return first, max(first, last)


@dataclass(frozen=True)
class Interior:
    """What the interior outputs see, the slabs that the outputs before and after it see, and the share of outputs in it.

    `padding` is what is left to torch, for each of them.
    """

    sees: Box
    slabs: tuple[tuple[Box | None, Box | None], ...]
    padding: Shape
    share: float


def interior_of(
    windows: Sequence[Window], outputs: Sequence[int], rows: Sequence[int], own: Sequence[Interval]
) -> Interior | None:
    """Split so many `outputs` of each dim, which see so many `rows`, of which `own` are the worker's; None if all wait.

    >>> interior_of([Window(3, 1, 0)], [8], [10], [(1, 9)]).slabs
    ((Box(start=(0,), stop=(3,)), Box(start=(7,), stop=(10,))),)
    """
    owns_all = [mine == (0, n) for mine, n in zip(own, rows, strict=True)]
    inside = [
        (0, count) if whole else window.seeing_only(mine, count)
        for window, count, mine, whole in zip(windows, outputs, own, owns_all, strict=True)
    ]
    if any(first == last for first, last in inside):
        return None

    def sees(d: int, some: Interval) -> Interval:
        return (0, rows[d]) if owns_all[d] else windows[d].sees(some)

    inner = [sees(d, some) for d, some in enumerate(inside)]
    outer = [sees(d, (0, count)) for d, count in enumerate(outputs)]
    slabs = []
    for d, ((first, last), count) in enumerate(zip(inside, outputs, strict=True)):
        ends = ((0, first), (last, count))
        boxes = [
            Box.of_intervals([*inner[:d], sees(d, some), *outer[d + 1 :]]) if some[0] < some[1] else None
            for some in ends
        ]
        slabs.append((boxes[0], boxes[1]))
    padding = tuple(window.padding if whole else 0 for window, whole in zip(windows, owns_all, strict=True))
    share = math.prod(last - first for first, last in inside) / math.prod(outputs)
    return Interior(Box.of_intervals(inner), tuple(slabs), padding, share)
