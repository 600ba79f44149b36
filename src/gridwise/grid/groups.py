"""Channels in groups: which groups a block of output channels touches, and how to compute it in few calls.

    6 output channels in 3 groups of 2, block [1, 6):      1 | 2 3 | 4 5
    runs                                                   half of group 0, then all of groups 1 and 2

Output channel o belongs to group ``o // per_group``, which reads only its own input channels.
"""

from __future__ import annotations

from itertools import pairwise

from .cuts import Interval


def groups_of(outputs: Interval, per_group: int) -> Interval:
    """The groups that a block of output channels touches.

    >>> groups_of((1, 6), per_group=2)
    (0, 3)
    """
    first, last = outputs
    return (first // per_group, -(-last // per_group)) if first < last else (0, 0)


def group_runs(outputs: Interval, per_group: int) -> list[tuple[Interval, Interval]]:
    """The block cut into runs, each of whole groups or part of one: (output channels, groups) for each run.

    >>> group_runs((1, 6), per_group=2)
    [((1, 2), (0, 1)), ((2, 6), (1, 3))]
    """
    first, last = outputs
    inner = (-(-first // per_group) * per_group, last // per_group * per_group)
    if inner[0] >= inner[1]:  # no whole group: parts of at most two adjacent groups
        ends = sorted({first, last, *(c for c in inner if first < c < last)})
    else:
        ends = sorted({first, *inner, last})
    return [(part, groups_of(part, per_group)) for part in pairwise(ends)]
