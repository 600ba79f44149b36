"""Tensors of `into` that share memory: what was saved for them must be the same, or no order of filling would be right.

A tensor that shares memory with itself (expanded, `as_strided`) is refused: an element has one place.

Parameters that are tied, and a view beside the tensor that it is of, were saved from one memory and hold the same values.
Where that is so they are filled, each with its own bytes. Only places that are one run of memory are compared here: of
tensors that lie there in pieces (transposed, on a device, converted) the last one wins.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from .chunk_reads import ChunkReads


def overlaps_itself(x: Tensor) -> bool:
    """Whether several elements of a tensor lie at one place.

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
    if not woven:  # each dim steps over all that the dims with smaller steps reach, as in nearly all tensors
        return False
    places = np.zeros(reach + 1, dtype=np.bool_)
    np.lib.stride_tricks.as_strided(places, x.shape, x.stride())[...] = True
    return int(np.count_nonzero(places)) < x.numel()


def shared_memory(units: ChunkReads) -> Iterator[tuple[int, int, int, int]]:
    """Two units each that go, in part or whole, to the same memory; where in the first that begins, and how many bytes it is.

    It begins where the second unit does. Units are walked through by address, and compared with the one before that reaches
    furthest. If all these pairs agree about what they share, any two units do.
    """
    straight = np.flatnonzero(units.addresses)
    order = straight[np.argsort(units.addresses[straight], kind="stable")]
    starts = units.addresses[order]
    stops = starts + units.sizes[order]
    reach = np.maximum.accumulate(stops)
    for place in (np.flatnonzero(starts[1:] < reach[:-1]) + 1).tolist():
        furthest = np.searchsorted(reach, reach[place - 1])
        size = min(stops[furthest], stops[place]) - starts[place]
        yield int(order[furthest]), int(order[place]), int(starts[place] - starts[furthest]), int(size)
