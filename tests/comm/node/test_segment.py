"""Shared memory without a name: opened by those who were told, and only if it is what they were told of."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from gridwise.comm.node.segment import Offer, SegmentLayout, accept


def test_both_see_the_same_memory_after_the_file_is_closed():
    offer = Offer.make(3)
    other = accept(offer.ticket, 3)
    offer.close()
    offer.segment.words[100] = 12345
    assert other.words[100] == 12345
    other.slots(1, 2)[7] = 99
    assert offer.segment.slots(1, 2)[7] == 99


def test_it_has_no_name_in_the_file_system():
    offer = Offer.make(2)
    assert os.fstat(offer.file).st_nlink == 0
    offer.close()


def test_another_file_in_its_place_is_refused():
    offer = Offer.make(2)
    with pytest.raises(OSError, match="not what it offered"):
        accept(offer.ticket[:-4] + b"0123", 2)
    with pytest.raises(OSError, match="not the one"):
        accept(offer.ticket, 5)
    offer.close()
    with pytest.raises(OSError, match="No such file"):
        accept(offer.ticket, 2)


@pytest.mark.parametrize("workers", [2, 3, 16, 64])
def test_no_two_things_share_a_place(workers):
    layout = SegmentLayout(workers)
    pairs = [(a, b) for a in range(workers) for b in range(workers)]
    words = [layout.doorbell(w) for w in range(workers)] + [
        f(a, b) for a, b in pairs for f in (layout.sent, layout.taken)
    ]
    assert len(set(words)) == len(words)
    assert min(words) >= 64
    slots = sorted(layout.slots(a, b) for a, b in pairs)
    assert slots[0] > max(words)
    assert all(b - a >= 2 * layout.chunk > 0 for a, b in pairwise(slots))
    assert slots[-1] + 2 * layout.chunk <= layout.board < layout.size
