"""Cut points of one dim: where each of p blocks starts and stops.

    cuts (0, 4, 7, 10)  =  blocks [0, 4) [4, 7) [7, 10) of a dim of extent 10 on 3 workers

Cut points never decrease, so a block may be empty but not negative, and the owner of an index is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from ..errors import PartitionError
from .box import whole_numbers

Cuts = tuple[int, ...]
Interval = tuple[int, int]


def balanced_cuts(extent: int, blocks: int) -> Cuts:
    """Cut `extent` into `blocks` parts that differ by at most one; the first ``extent % blocks`` are the longer ones.

    Parameters
    ----------
    extent : how many rows there are
    blocks : how many parts to cut them into

    Examples
    --------
    >>> balanced_cuts(10, 3)
    (0, 4, 7, 10)
    """
    if blocks < 1 or extent < 0:
        raise PartitionError(
            f"cannot cut an extent of {extent} into {blocks} blocks: it takes at least 0 rows and 1 block."
        )
    short, longer = divmod(extent, blocks)
    return tuple(i * short + min(i, longer) for i in range(blocks + 1))


def chunked_cuts(extent: int, blocks: Sequence[int]) -> Cuts:
    """Cut points as torch.chunk and DTensor place them: all blocks as long as the first, until no rows are left.

    With several numbers in `blocks`, the blocks of the first are cut again by the second, and so on.

    >>> chunked_cuts(10, [3]), chunked_cuts(5, [4]), chunked_cuts(10, [2, 3])
    ((0, 4, 8, 10), (0, 2, 4, 5, 5), (0, 2, 4, 5, 7, 9, 10))
    """
    cuts: Cuts = (0, extent)
    for number in blocks:
        parts = [
            min(start + i * -(-(stop - start) // number), stop) for start, stop in pairwise(cuts) for i in range(number)
        ]
        cuts = (*parts, extent)
    return cuts


def cuts_from_extents(extents: Sequence[int]) -> Cuts:
    """Cut points of blocks with the given extents, in order.

    Parameters
    ----------
    extents : the rows of each block

    Examples
    --------
    >>> cuts_from_extents([4, 0, 3])
    (0, 4, 4, 7)
    """
    if any(extent < 0 for extent in extents):
        raise PartitionError(f"a block cannot have a negative extent: {tuple(extents)}.")
    return (0, *accumulate(extents))


def checked_cuts(cuts: Sequence[int], blocks: int) -> Cuts:
    """`cuts` as a tuple; raises unless they start at 0, never decrease, and make `blocks` blocks."""
    result = whole_numbers(cuts, "cuts")
    if len(result) != blocks + 1 or result[0] != 0 or any(a > b for a, b in pairwise(result)):
        raise PartitionError(
            f"`cuts` (={result}) must be {blocks + 1} numbers that start at 0 and never decrease, "
            f"one more than the {blocks} blocks."
        )
    return result


def scaled(cuts: Cuts, factor: int) -> Cuts:
    """The cut points of the same blocks when each row counts as `factor` elements.

    >>> scaled((0, 4, 7, 10), 3)
    (0, 12, 21, 30)
    """
    return tuple(factor * cut for cut in cuts)


def aligned_cuts(cuts: Cuts, chunk: int) -> Cuts:
    """The cuts with each inner one at the nearest multiple of `chunk`: no chunk is split, but blocks may become empty.

    >>> aligned_cuts((0, 4, 7, 10), 3)
    (0, 3, 6, 10)
    """
    if chunk < 1:
        raise PartitionError(f"a chunk has at least 1 row, not {chunk}.")
    inner = (min((cut + chunk // 2) // chunk * chunk, cuts[-1]) for cut in cuts[1:-1])
    return (cuts[0], *inner, cuts[-1])


def interval(cuts: Cuts, block: int) -> Interval:
    """Where `block` starts and stops."""
    return cuts[block], cuts[block + 1]


def blocks_meeting(cuts: Cuts, start: int, stop: int) -> Iterator[int]:
    """The non-empty blocks that share an index with ``[start, stop)``, in order, found by bisection."""
    start, stop = max(start, 0), min(stop, cuts[-1])
    if start >= stop:
        return
    first = bisect_right(cuts, start) - 1
    last = bisect_left(cuts, stop)
    for block in range(first, last):
        if cuts[block] < cuts[block + 1]:
            yield block
