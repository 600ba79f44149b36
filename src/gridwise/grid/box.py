"""A box: a product of half-open integer intervals. Every block, piece and need is one.

    Box((0, 4), (2, 8))  =  rows 0..1, columns 4..7

Everything above the geometry slices tensors with `Box.slices`; nothing in here knows about workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import PartitionError

Shape = tuple[int, ...]


def whole_numbers(given: Iterable[int], name: str) -> Shape:
    """The given values as Python integers; a value that is not a whole number raises instead of being rounded.

    >>> whole_numbers((1, 2.0), "shape")
    (1, 2)
    """
    values: object = given
    try:
        values = tuple(given)
        numbers = tuple(map(int, values))
        if all(number == value for number, value in zip(numbers, values, strict=True)):
            return numbers
    except (TypeError, ValueError, OverflowError):
        pass
    raise PartitionError(f"`{name}` (={values}) must be a list of whole numbers.")


@dataclass(frozen=True, slots=True)
class Box:
    """Half-open intervals ``[start_d, stop_d)``, one per dim; an interval may be empty but not negative.

    Parameters
    ----------
    start, stop : per dim, the first index and the one after the last

    Examples
    --------
    >>> box = gridwise.grid.Box((0, 2), (4, 5))
    >>> box.shape, box.volume
    ((4, 3), 12)
    >>> box.slices
    (slice(0, 4, None), slice(2, 5, None))
    """

    start: Shape
    stop: Shape

    def __post_init__(self) -> None:
        assert len(self.start) == len(self.stop), (self.start, self.stop)
        assert all(a <= b for a, b in zip(self.start, self.stop, strict=True)), (self.start, self.stop)

    @classmethod
    def of_shape(cls, shape: Shape) -> Box:
        """The box at the origin with the given extents."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def of_intervals(cls, ends: Iterable[tuple[int, int]]) -> Box:
        """The product of the given intervals."""
        pairs = tuple(ends)
        return cls(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))

    @property
    def shape(self) -> Shape:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def volume(self) -> int:
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def shifted(self, offset: Shape) -> Box:
        """The box moved by `offset`."""
        return Box(
            tuple(a + o for a, o in zip(self.start, offset, strict=True)),
            tuple(b + o for b, o in zip(self.stop, offset, strict=True)),
        )

    def relative_to(self, other: Box) -> Box:
        """The same box in the coordinates of `other`, whose start becomes the origin."""
        return self.shifted(tuple(-o for o in other.start))

    def grown(self, halo: Iterable[tuple[int, int]], shape: Shape) -> Box:
        """The box extended by `halo` rows (before, after) in each dim, clipped to `shape`.

        >>> Box((0, 4), (2, 8)).grown([(1, 1), (2, 2)], (4, 9))
        Box(start=(0, 2), stop=(3, 9))
        """
        ends = zip(self.start, self.stop, halo, shape, strict=True)
        return Box.of_intervals((max(0, a - before), min(n, b + after)) for a, b, (before, after), n in ends)

    def intersect(self, other: Box) -> Box | None:
        """The common part, or None when it is empty."""
        start = tuple(max(a, c) for a, c in zip(self.start, other.start, strict=True))
        stop = tuple(min(b, d) for b, d in zip(self.stop, other.stop, strict=True))
        if any(a >= b for a, b in zip(start, stop, strict=True)):
            return None
        return Box(start, stop)

    def outside(self, other: Box) -> int:
        """The number of elements that are not in the other box."""
        common = self.intersect(other)
        return self.volume - (0 if common is None else common.volume)

    def contains(self, other: Box) -> bool:
        """Whether every index of `other` lies in this box; an empty box lies in any."""
        ends = zip(self.start, other.start, other.stop, self.stop, strict=True)
        return other.volume == 0 or all(a <= c and d <= b for a, c, d, b in ends)
