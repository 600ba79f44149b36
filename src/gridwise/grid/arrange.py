"""The grid of a given number of workers that cuts a tensor most evenly, with some dims left whole.

    (2, 16, 6) over 4 workers, dim 1 whole      ->  (2, 1, 2)

A grid may have more places along a dim than there are rows; the workers at the last places then have empty blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from .box import Shape
from .cuts import balanced_cuts
from .grid import Grid
from .layout import Layout


def factorisations(workers: int, axes: int) -> Iterator[Shape]:
    """Every way to write `workers` as an ordered product of `axes` numbers.

    >>> list(factorisations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if axes == 0:
        if workers == 1:
            yield ()
        return
    if axes == 1:
        yield (workers,)
        return
    for first in range(1, workers + 1):
        if workers % first == 0:
            for rest in factorisations(workers // first, axes - 1):
                yield (first, *rest)


@lru_cache(maxsize=4096)
def arranged(extents: Shape, workers: int, whole: frozenset[int] = frozenset(), like: Shape | None = None) -> Shape:
    """The shape of the grid whose largest block is smallest; ties go to the one nearest to `like`, then to early dims.

    Dims in `whole` are not cut. If no dim can be cut, the result is all ones, which has no room for several workers.

    >>> arranged((2, 16, 6), 4, frozenset({1}))
    (2, 1, 2)
    """
    free = [d for d in range(len(extents)) if d not in whole and extents[d] > 1]
    ones = (1,) * len(extents)
    if not free:
        return ones
    best: tuple[tuple[int, int, tuple[int, ...]], Shape] | None = None
    for factors in factorisations(workers, len(free)):
        shape = list(ones)
        for d, p in zip(free, factors, strict=True):
            shape[d] = p
        largest = 1
        for n, p in zip(extents, shape, strict=True):
            largest *= -(-n // p)
        changed = 0 if like is None else sum(a != b for a, b in zip(shape, like, strict=True))
        score = largest, changed, tuple(-p for p in shape)
        if best is None or score < best[0]:
            best = score, tuple(shape)
    assert best is not None
    return best[1]


def layout_with_whole(layout: Layout, dims: Sequence[int], ranks: Sequence[int]) -> Layout | None:
    """A layout of the same tensor on the workers `ranks` that does not cut `dims`; None if no other dim can be cut.

    >>> layout = Layout.balanced(Grid((0, 1), (1, 2)), (4, 6))
    >>> layout_with_whole(layout, [1], (0, 1)).cuts
    ((0, 2, 4), (0, 6))
    """
    if all(layout.grid.shape[d] == 1 for d in dims):
        return layout
    shape = arranged(layout.global_shape, len(ranks), frozenset(dims), layout.grid.shape)
    if max(shape, default=1) == 1:
        return None
    cuts = tuple(
        have if len(have) == p + 1 and d not in dims else balanced_cuts(have[-1], p)
        for d, (have, p) in enumerate(zip(layout.cuts, shape, strict=True))
    )
    return Layout(Grid(tuple(ranks), shape), cuts)
