"""Tensors of `into` that share memory: their saved values must be equal, or no order of filling would be right.

A tensor whose own elements share memory (expanded, `as_strided`) is refused.

Tied parameters, and a view next to its base tensor, were saved from the same memory and hold the same values; then each
is filled with its own bytes. Only targets that are contiguous in host memory are compared here. Of tensors that are
filled in pieces (transposed, on a device, converted), those that are one tensor under two names are compared by
`reader.check_tied`; of those that overlap in part, the last one wins.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from .chunk_reads import ChunkReads


def overlaps_itself(x: Tensor) -> bool:
    """Whether several elements of a tensor share one place in memory.

    >>> import torch
    >>> overlaps_itself(torch.ones(1).expand(3)), overlaps_itself(torch.ones(3, 2).T)
    (True, False)
    """
    if x.is_contiguous():
        return False
    strides = sorted((stride, extent) for stride, extent in zip(x.stride(), x.shape, strict=True) if extent > 1)
    reach, woven = 0, False
    for stride, extent in strides:
        woven = woven or stride <= reach
        reach += stride * (extent - 1)
    if not woven:  # each dim steps beyond the reach of all dims with smaller strides, as in nearly all tensors
        return False
    places = np.zeros(reach + 1, dtype=np.bool_)
    np.lib.stride_tricks.as_strided(places, x.shape, x.stride())[...] = True
    return int(np.count_nonzero(places)) < x.numel()


def shared_memory(reads: ChunkReads) -> Iterator[tuple[int, int, int, int]]:
    """Pairs of reads whose memory overlaps, with the offset of the overlap in the first read and its size in bytes.

    The overlap begins where the second read does. Reads are visited by address, each paired with the one before it that
    reaches furthest. If all these pairs agree on what they share, any two reads do.
    """
    straight = np.flatnonzero(reads.addresses)
    order = straight[np.argsort(reads.addresses[straight], kind="stable")]
    starts = reads.addresses[order]
    stops = starts + reads.sizes[order]
    reach = np.maximum.accumulate(stops)
    for place in (np.flatnonzero(starts[1:] < reach[:-1]) + 1).tolist():
        furthest = np.searchsorted(reach, reach[place - 1])
        size = min(stops[furthest], stops[place]) - starts[place]
        yield int(order[furthest]), int(order[place]), int(starts[place] - starts[furthest]), int(size)
