"""What the rows of others add to the outputs of a window, where outputs are linear in what they see.

    they see      [ received |      own rows       | received ]         of one dim
    outputs       [        from the own rows, zeros around     ]
                  [ + slab ]                          [ + slab ]

The own block is taken as if there were zeros around it, which torch does itself when it pads. What was received adds to the
first and the last outputs of each dim. A slab is what those see, with zeros for all that is not received; of the window only
those taps are needed that reach what is received. So that corners count once, received rows of a dim reach over all rows of
the dims after it and over the own rows of those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .box import Box, Shape
from .cuts import Interval
from .interior import Window


@dataclass(frozen=True)
class Slab:
    """What some outputs of dim `dim` see with some of their taps, of which only `received` is not zero.

    `padding` is left to torch.
    """

    sees: Box
    received: Box
    padding: Shape
    dim: int
    outputs: Interval
    taps: Interval


@dataclass(frozen=True)
class Slabs:
    """The padding with which the own block gives its part of all outputs, and the slabs that give the rest."""

    padding: Shape
    slabs: tuple[Slab, ...]


def slabs_of(
    windows: Sequence[Window],
    outputs: Sequence[int],
    rows: Sequence[int],
    own: Sequence[Interval],
    filled: Sequence[Interval],
) -> Slabs | None:
    """How so many `outputs` of each dim, which see so many `rows`, come from the `own` ones and from others'.

    Rows outside `filled` are zero. None where torch cannot pad the own block so that it gives just these outputs.

    >>> found = slabs_of([Window(3, 1, 0)], [8], [10], own=[(1, 9)], filled=[(0, 10)])
    >>> found.padding, [(slab.outputs, slab.sees.start, slab.sees.stop) for slab in found.slabs]
    ((1,), [((0, 1), (0,), (1,)), ((7, 8), (9,), (10,))])
    """
    each = list(zip(windows, outputs, rows, own, filled, strict=True))
    padding = tuple(first + window.padding for window, _, _, (first, _), _ in each)
    for (window, count, _, (first, last), _), around in zip(each, padding, strict=True):
        if first == last or (last - first + 2 * around - window.extent) // window.stride + 1 != count:
            return None
    slabs = []
    for d, (window, count, _, (first, last), (start, stop)) in enumerate(each):
        for low, high in ((start, first), (last, stop)):
            if low >= high:
                continue
            some = window.meeting((low, high), count)
            if some[0] == some[1]:
                continue
            taps = window.taps((low, high), some)
            if taps[0] == taps[1]:
                continue
            sees, received = (
                Box.of_intervals([*own[:d], along, *((0, n) for n in rows[d + 1 :])])
                for along in (window.with_taps(taps).sees(some), (low, high))
            )
            left = (*padding[:d], 0, *(after.padding for after in windows[d + 1 :]))
            slabs.append(Slab(sees, received, left, d, some, taps))
    return Slabs(padding, tuple(slabs))
