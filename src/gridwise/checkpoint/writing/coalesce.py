"""Tensors that lie close to one another in memory, to be copied together.

Small tensors that were made one after the other lie one after the other, a few hundred bytes apart: between them is what
the allocator and torch note about each. One copy of a whole run, with what lies between, takes half the time of a copy of
each tensor. Where the run goes, the tensors lie as far apart as before; what lies between them there is never looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

GAP = 1024
"""Bytes between two tensors of a run, at most. Less than a page: they lie in pages that hold bytes of the two."""


class MemoryRanges(NamedTuple):
    """Runs of memory, and which tensors are in them."""

    starts: np.ndarray
    sizes: np.ndarray
    firsts: np.ndarray
    """Of each run, the number of its first tensor."""
    which: np.ndarray
    """Of each tensor, the number of its run."""
    before: np.ndarray
    """Of each tensor, the bytes of its run that lie before it."""


def coalesced(addresses: np.ndarray, sizes: np.ndarray, may_join: np.ndarray) -> MemoryRanges:
    """The runs of so many bytes at these addresses, in this order; those that may not join are runs by themselves."""
    ends = addresses + sizes
    gaps = addresses[1:] - ends[:-1]
    is_first = np.ones(len(sizes), dtype=np.bool_)
    is_first[1:] = (gaps < 0) | (gaps > GAP) | ~(may_join[1:] & may_join[:-1])
    firsts = np.flatnonzero(is_first)
    which = np.cumsum(is_first) - 1
    starts = addresses[firsts]
    stops = ends[np.append(firsts, len(sizes))[1:] - 1]
    return MemoryRanges(starts, stops - starts, firsts, which, addresses - starts[which])
