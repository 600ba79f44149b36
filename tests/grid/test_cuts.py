"""Cuts: blocks tile the dim, are never negative, and are found by bisection."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import strategies as st

from gridwise.errors import PartitionError
from gridwise.grid import Cuts, Interval, aligned_cuts, balanced_cuts, cuts_from_extents
from gridwise.grid.cuts import blocks_meeting, checked_cuts, interval

from .strategies import cases, cuts, intervals


@cases(150, extent=st.integers(0, 1000), blocks=st.integers(1, 50))
def test_balanced_cuts_are_those_of_numpy(extent: int, blocks: int) -> None:
    found = balanced_cuts(extent, blocks)
    lengths = [len(part) for part in np.array_split(np.arange(extent), blocks)]
    assert [stop - start for start, stop in pairwise(found)] == lengths
    assert found == checked_cuts(found, blocks) == cuts_from_extents(lengths)


@cases(150, points=st.integers(1, 7).flatmap(cuts), wanted=intervals(-3, 30))
def test_blocks_meeting_an_interval(points: Cuts, wanted: Interval) -> None:
    blocks = range(len(points) - 1)
    meeting = [b for b in blocks if set(range(*interval(points, b))) & set(range(*wanted))]
    assert list(blocks_meeting(points, *wanted)) == meeting


@pytest.mark.parametrize(("extent", "blocks"), [(-1, 2), (3, 0), (3, -1)])
def test_balanced_cuts_refuse_what_cannot_be_cut(extent: int, blocks: int) -> None:
    with pytest.raises(PartitionError, match=f"extent of {extent} into {blocks}"):
        balanced_cuts(extent, blocks)


def test_a_negative_extent_is_refused() -> None:
    with pytest.raises(PartitionError, match="negative extent"):
        cuts_from_extents([2, -1])


@pytest.mark.parametrize("wrong", [(), (0, 2), (1, 2, 3), (0, 3, 2), (0, 1, 2, 3)])
def test_cuts_that_do_not_make_two_blocks_are_refused(wrong: Cuts) -> None:
    with pytest.raises(PartitionError, match="must be 3 numbers"):
        checked_cuts(wrong, 2)


def test_no_extents_make_no_blocks() -> None:
    assert cuts_from_extents([]) == (0,)


def test_aligned_cuts_leave_every_chunk_in_one_block() -> None:
    for extent, blocks, chunk in product(range(0, 40, 3), range(1, 6), range(1, 8)):
        even = balanced_cuts(extent, blocks)
        aligned = aligned_cuts(even, chunk)
        assert (len(aligned), aligned[0], aligned[-1]) == (blocks + 1, 0, extent)
        assert list(aligned) == sorted(aligned)
        assert all(cut % chunk == 0 or cut == extent for cut in aligned)
        assert all(abs(a - b) <= chunk for a, b in zip(even, aligned, strict=True))
    with pytest.raises(PartitionError, match="at least 1 row"):
        aligned_cuts((0, 4), 0)
