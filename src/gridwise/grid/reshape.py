"""Reshaping a tensor that is cut into blocks: which blocks of one shape are also blocks of the other.

Dims are taken in groups that have as many elements before as after. The elements of a group in row-major order form a
*line*. Cuts of that line are *expressible* in a shape if its intervals are boxes of the shape, in the order of a grid:

    (6, 4) cut at 0, 8, 24         rows 0..1 and 2..5                      cuts between rows of the first dim
    (2, 6) cut at 0, 3, 6, 9, 12   halves of both rows: a grid of (2, 2)   single rows, each of them cut alike

Cuts expressible in both shapes need no movement: the workers keep their order, and only the grid's shape changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from .arrange import factorisations
from .box import Shape
from .cuts import Cuts, balanced_cuts, scaled
from .grid import Grid
from .layout import Layout

Group = tuple[range, range]
"""Dims of the old and of the new shape that hold the same elements."""


def dim_groups(before: Sequence[int], after: Sequence[int]) -> list[Group]:
    """The smallest groups of dims with equal numbers of elements, for two shapes of the same size, at least 1.

    >>> dim_groups((2, 3, 4), (6, 2, 2))
    [(range(0, 2), range(0, 1)), (range(2, 3), range(1, 3))]
    """
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first, second, m, n = i, j, 1, 1
        if i < len(before):
            m, i = before[i], i + 1
        if j < len(after):
            n, j = after[j], j + 1
        while m != n:
            if m < n:
                m, i = m * before[i], i + 1
            else:
                n, j = n * after[j], j + 1
        groups.append((range(first, i), range(second, j)))
    return groups


def expressed(line: Cuts, dims: Sequence[int]) -> tuple[Cuts, ...] | None:
    """The cuts of each dim whose blocks are the intervals of `line`; None if it is not expressible.

    >>> expressed((0, 8, 24), (6, 4)), expressed((0, 3, 6, 9, 12), (2, 6)), expressed((0, 5, 12), (2, 6))
    (((0, 2, 6), (0, 4)), ((0, 1, 2), (0, 3, 6)), None)
    """
    blocks = len(line) - 1
    if not dims:
        return () if blocks == 1 else None
    first, inner = dims[0], math.prod(dims[1:])
    if all(cut % inner == 0 for cut in line):
        return (tuple(cut // inner for cut in line), *((0, n) for n in dims[1:]))
    if blocks % first:
        return None
    each = blocks // first
    part = line[: each + 1]
    if any(line[i * each + k] != i * inner + part[k] for i in range(first) for k in range(each + 1)):
        return None
    rest = expressed(part, dims[1:])
    return None if rest is None else (tuple(range(first + 1)), *rest)


def flattened_cuts(cuts: Sequence[Cuts]) -> Cuts | None:
    """The cuts of the line into the blocks that these cuts make; None if those are not intervals in the grid's order.

    >>> flattened_cuts([(0, 1, 2), (0, 3, 6)]), flattened_cuts([(0, 2), (0, 3, 6)])
    ((0, 3, 6, 9, 12), None)
    """
    if not cuts:
        return (0, 1)
    inner = math.prod(each[-1] for each in cuts[1:])
    if all(len(each) == 2 for each in cuts[1:]):
        return scaled(cuts[0], inner)
    if cuts[0] != tuple(range(cuts[0][-1] + 1)):
        return None
    rest = flattened_cuts(cuts[1:])
    return None if rest is None else (0, *(i * inner + cut for i in range(cuts[0][-1]) for cut in rest[1:]))


@lru_cache(maxsize=4096)
def best_flat_cuts(before: Shape, after: Shape, blocks: int) -> Cuts | None:
    """Cuts of the line into `blocks` blocks, expressible in both shapes, with the smallest largest block; or None."""
    count = math.prod(before)
    found: list[tuple[int, Cuts]] = []
    for outer in {math.prod(dims[:k]) for dims in (before, after) for k in range(len(dims) + 1)}:
        if blocks % outer or count % outer:
            continue
        length = count // outer
        for unit in _units(before, after):
            if length % unit:
                continue
            part = scaled(balanced_cuts(length // unit, blocks // outer), unit)
            line = (0, *(i * length + cut for i in range(outer) for cut in part[1:]))
            if expressed(line, before) is not None and expressed(line, after) is not None:
                found.append((max(b - a for a, b in pairwise(line)), line))
    return min(found)[1] if found else None


def _units(before: Shape, after: Shape) -> set[int]:
    first, second = ({math.prod(dims[k:]) for k in range(len(dims) + 1)} for dims in (before, after))
    return {math.lcm(a, b) for a in first for b in second}


def reshaped(layout: Layout, shape: Sequence[int], ranks: Sequence[int]) -> tuple[Layout, Layout] | None:
    """Layouts of the tensor and of `shape` with the same blocks: the tensor's own if expressible in `shape`, else new.

    None if no cuts are expressible in both shapes.

    >>> layout = Layout.balanced(Grid((0, 1), (1, 2)), (4, 6))
    >>> [each.cuts for each in reshaped(layout, (24,), (0, 1))]
    [((0, 2, 4), (0, 6)), ((0, 12, 24),)]
    """
    have, want = layout.global_shape, tuple(shape)
    groups = dim_groups(have, want)
    kept = [_kept(layout, group, want) for group in groups]
    if all(each is not None for each in kept):
        return layout, _joined(layout.grid.ranks, kept, 1)  # type: ignore[arg-type]
    now = [math.prod(layout.grid.shape[d] for d in before) for before, _ in groups]
    best: tuple[tuple[float, int], list[_Both]] | None = None
    for factors in factorisations(len(ranks), len(groups)):
        made = list(_each_cut(groups, factors, now, kept, have, want))
        if len(made) < len(groups):
            continue
        largest = math.prod(size for size, _, _ in made)
        score = largest, sum(a != b for a, b in zip(factors, now, strict=True))
        if largest < 1 and (best is None or score < best[0]):
            best = score, [(before, after) for _, before, after in made]
    if best is None:
        return None
    return _joined(ranks, best[1], 0), _joined(ranks, best[1], 1)


_Both = tuple[tuple[Cuts, ...], tuple[Cuts, ...]]
"""The cuts of a group's dims, in the old and in the new shape."""


def _kept(layout: Layout, group: Group, want: Shape) -> _Both | None:
    cuts = tuple(layout.cuts[d] for d in group[0])
    line = flattened_cuts(cuts)
    made = None if line is None else expressed(line, [want[d] for d in group[1]])
    return None if made is None else (cuts, made)


def _each_cut(
    groups: Sequence[Group], factors: Shape, now: Sequence[int], kept: Sequence[_Both | None], have: Shape, want: Shape
) -> Iterator[tuple[float, tuple[Cuts, ...], tuple[Cuts, ...]]]:
    """For each group its largest block, as a fraction, and the cuts before and after; stops at a group without any."""
    for (before, after), p, was, as_is in zip(groups, factors, now, kept, strict=True):
        first, second = tuple(have[d] for d in before), tuple(want[d] for d in after)
        if p == was and as_is is not None:
            line = flattened_cuts(as_is[0])
        else:
            line = best_flat_cuts(first, second, p)
        if line is None:
            return
        of_first, of_second = expressed(line, first), expressed(line, second)
        assert of_first is not None
        assert of_second is not None
        yield max(b - a for a, b in pairwise(line)) / line[-1], of_first, of_second


def _joined(ranks: Sequence[int], parts: Sequence[_Both], side: int) -> Layout:
    cuts = tuple(each for part in parts for each in part[side])
    return Layout(Grid(tuple(ranks), tuple(len(each) - 1 for each in cuts)), cuts)
