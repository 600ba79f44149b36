"""The copy that a background save writes from, in memory of our own that the next save reuses.

Tensors that lie in host memory exactly as they are stored are copied by address, without making a tensor for each, and
neighbours are copied together, so that the copy of ten thousand small tensors takes only as long as their bytes take.
Small tensors that were allocated one after the other lie a few hundred bytes apart, with records of the allocator and
of torch between them. Copying a whole run, gaps included, takes half the time of a copy per tensor; the gaps in the
copy are never read. All other tensors are copied by torch; those on a device go into pinned memory, all copies at once,
which are complete before anything reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ctypes import PyDLL, c_size_t, c_void_p
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...comm.transports.base import Transport
from ..format.chunks import CHUNK
from ..format.data_file import ALIGNMENT
from ..state.flatten import Flat, Group
from ..state.local_blocks import LocalBlock, LocalTensor

GAP = 1024
"""Most bytes between two tensors of a run. Less than a page, so a gap lies in pages that hold bytes of the two."""

_memory: dict[Transport, Tensor | None] = {}
"""The memory kept for the next save; None while a save is using it."""

memmove = PyDLL(None).memmove
"""The C library's, called without releasing the GIL, which would take longer than to copy a few kilobytes."""
memmove.argtypes, memmove.restype = (c_void_p, c_void_p, c_size_t), None


class Staged:
    """A copy of this worker's part of a state, as it is when this is constructed."""

    @torch.no_grad()
    def __init__(self, flat: Flat, transport: Transport) -> None:
        self._flat = flat
        parts = list(_parts(flat))
        groups = [group.plain for group in flat.groups]
        tensors = [*(part.data for part in parts), *chain.from_iterable(plain.tensors for plain in groups)]
        addresses = _column((part.address for part in parts), *(plain.addresses for plain in groups))
        sizes = _column((part.size or part.data.nbytes for part in parts), *(plain.sizes for plain in groups))
        by_address = (addresses != 0) & (sizes <= CHUNK)  # torch copies larger ones with several threads
        runs = coalesced(addresses, sizes, by_address)
        rooms = -(-runs.sizes // ALIGNMENT) * ALIGNMENT
        pinned = any(part.data.is_cuda for part in parts if not part.size)
        self._transport = transport
        self._memory = _reused_memory(transport, int(rooms.sum()), pinned)
        places = self._memory.data_ptr() + np.cumsum(rooms) - rooms
        self._addresses = places[runs.which] + runs.before
        short = by_address[runs.firsts]
        columns = [column[short].tolist() for column in (places, runs.starts, runs.sizes)]
        for to, start, size in zip(*columns, strict=True):
            memmove(to, start, size)
        self._copy([tensors[first] for first in runs.firsts[~short].tolist()], places[~short].tolist())

    def _copy(self, tensors: list[Tensor], places: list[int]) -> None:
        devices = set()
        for x, to in zip(tensors, places, strict=True):
            self._place(to, x).copy_(x, non_blocking=True)
            if x.is_cuda:
                devices.add(x.device)
        for device in devices:
            torch.cuda.synchronize(device)

    def _place(self, address: int, x: Tensor) -> Tensor:
        """The memory at an address as a tensor like `x`."""
        start = address - self._memory.data_ptr()
        return self._memory[start : start + x.nbytes].view(x.dtype).view(x.shape)

    def free(self) -> None:
        """Drop the references to the caller's own tensors."""
        self._flat = Flat()

    def give_back(self) -> None:
        """Keep the memory for the next save, now that this one no longer uses it."""
        if self._transport in _memory:  # else the transport was closed meanwhile
            _memory[self._transport] = self._memory

    def flat(self) -> Flat:
        """The state, with the copies in place of its tensors."""
        addresses = iter(self._addresses.tolist())

        def copied(tensors: dict[str, LocalTensor]) -> dict[str, LocalTensor]:
            return {
                key: LocalTensor(x.code, x.shape, self._copies(x.parts, addresses), x.everywhere)
                for key, x in tensors.items()
            }

        tensors, own_tensors = copied(self._flat.tensors), copied(self._flat.own_tensors)
        groups = []
        for prefix, plain, is_per_worker in self._flat.groups:
            count = len(plain.names)
            copies = plain._replace(tensors=[self._memory] * count, addresses=list(islice(addresses, count)))
            groups.append(Group(prefix, copies, is_per_worker))
        flat = replace(self._flat, tensors=tensors, own_tensors=own_tensors, groups=groups)
        flat.spell_out()
        return flat

    def _copies(self, parts: Sequence[LocalBlock], addresses: Iterator[int]) -> list[LocalBlock]:
        copies = []
        for part, address in zip(parts, addresses, strict=False):
            size = part.size or part.data.nbytes
            copies.append(LocalBlock(part.box, self._memory, part.owned, address, size) if size else part)
        return copies


class MemoryRanges(NamedTuple):
    """Runs of memory, and which tensors are in them."""

    starts: np.ndarray
    sizes: np.ndarray
    firsts: np.ndarray
    """For each run, the number of its first tensor."""
    which: np.ndarray
    """For each tensor, the number of its run."""
    before: np.ndarray
    """For each tensor, the bytes of its run that lie before it."""


def coalesced(addresses: np.ndarray, sizes: np.ndarray, may_join: np.ndarray) -> MemoryRanges:
    """Runs of neighbouring pieces of memory, in the given order; a piece that may not join is a run by itself."""
    ends = addresses + sizes
    gaps = addresses[1:] - ends[:-1]
    is_first = np.ones(len(sizes), dtype=np.bool_)
    is_first[1:] = (gaps < 0) | (gaps > GAP) | ~(may_join[1:] & may_join[:-1])
    firsts = np.flatnonzero(is_first)
    which = np.cumsum(is_first) - 1
    starts = addresses[firsts]
    stops = ends[np.append(firsts, len(sizes))[1:] - 1]
    return MemoryRanges(starts, stops - starts, firsts, which, addresses - starts[which])


def _column(*numbers: Iterable[int]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(numbers), dtype=np.int64)


def _parts(flat: Flat) -> Iterator[LocalBlock]:
    return (part for tensors in (flat.tensors, flat.own_tensors) for x in tensors.values() for part in x.parts)


def _reused_memory(transport: Transport, size: int, pinned: bool) -> Tensor:
    """At least `size` bytes of memory: that of the last save if it is free and large enough, else new."""
    if transport not in _memory:
        transport.on_close.append(partial(forget, transport))
    memory = _memory.get(transport)
    _memory[transport] = None
    if memory is None or memory.numel() < size or (pinned and not memory.is_pinned()):
        del memory
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned, device="cpu")
    return memory


def forget(transport: Transport) -> None:
    """Free the memory that is kept for copies."""
    _memory.pop(transport, None)
