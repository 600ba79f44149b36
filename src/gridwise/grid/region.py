"""A region: a part of a tensor, mirrored or not, that is used in place of the whole, as in random crops and flips.

    Region((2,), (5,), (True,))     rows 6, 5, 4, 3, 2 of a tensor, in this order, as rows 0 to 4

A worker that needs a box of the region reads one box of the tensor and flips it; it reads nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from ..errors import PartitionError
from .box import Box, Shape

Value = TypeVar("Value")


@dataclass(frozen=True)
class Region:
    """The rows ``[start_d, start_d + shape_d)`` of each dim, in reverse order where `mirrored`."""

    start: Shape
    shape: Shape
    mirrored: tuple[bool, ...]

    @classmethod
    def whole(cls, shape: Shape) -> Region:
        """All of a tensor of this shape, unmirrored."""
        return cls((0,) * len(shape), shape, (False,) * len(shape))

    def cropped(self, dim: int, offset: int, extent: int) -> Region:
        """The `extent` rows from `offset` on, counted within this region.

        >>> Region((2,), (5,), (True,)).cropped(0, 1, 2)
        Region(start=(4,), shape=(2,), mirrored=(True,))
        """
        if not 0 <= offset <= offset + extent <= self.shape[dim]:
            raise PartitionError(f"rows [{offset}, {offset + extent}) of dim {dim} do not lie in {self.shape}.")
        first = self.shape[dim] - offset - extent if self.mirrored[dim] else offset
        return replace(
            self, start=_with(self.start, dim, self.start[dim] + first), shape=_with(self.shape, dim, extent)
        )

    def flipped(self, dim: int) -> Region:
        """The same rows in the opposite order."""
        return replace(self, mirrored=_with(self.mirrored, dim, not self.mirrored[dim]))

    def source_of(self, box: Box) -> Box:
        """The box of the tensor that a box of the region refers to.

        >>> Region((2,), (5,), (True,)).source_of(Box((0,), (2,)))
        Box(start=(5,), stop=(7,))
        """
        ends = zip(box.start, box.stop, self.start, self.shape, self.mirrored, strict=True)
        return Box.of_intervals((s + n - b, s + n - a) if turned else (s + a, s + b) for a, b, s, n, turned in ends)

    @property
    def mirrored_dims(self) -> tuple[int, ...]:
        return tuple(d for d, turned in enumerate(self.mirrored) if turned)


def _with(values: tuple[Value, ...], place: int, value: Value) -> tuple[Value, ...]:
    return (*values[:place], value, *values[place + 1 :])
