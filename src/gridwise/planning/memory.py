"""The memory of a step: every allocation and release in order, the resulting curve, and who holds what at its peak.

Memory is tracked by storage, as the allocator sees it: tensors that share one count once, and it is released with the last
of them. This alone separates a layer's results from what it needs temporarily.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, UntypedStorage

from ..torch_internals.tensors import storage_key

LayerPhase = tuple[str, str]
"""A layer and a phase."""
BLOCKS = {"cpu": 1, "cuda": 512}
"""Allocators hand out multiples of this many bytes."""


@dataclass(frozen=True)
class Holder:
    """Memory held at the peak, by the layer and the phase that allocated it."""

    layer: str
    phase: str
    bytes: int


@dataclass(frozen=True)
class Moment:
    """A stretch of the step within one layer: the most that is held during it, and what is held after it."""

    layer: str
    phase: str
    peak: int
    after: int


class Memory:
    """Allocations and releases, as they happen; `at` is the current layer and phase."""

    def __init__(self, device: str = "cpu") -> None:
        self._block = BLOCKS[device]
        self.at: LayerPhase = "", ""
        self.allocated = 0
        self._log: list[tuple[int, LayerPhase, LayerPhase]] = []
        """Bytes allocated (or, negative, released), the place that allocated them, and the place at that moment."""
        self._followed: dict[int, weakref.ref[UntypedStorage]] = {}

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Leave out memory that exists before the step: it is counted separately."""
        for tensor in tensors:
            self._follow(tensor, None)

    def add(self, tensors: Iterable[Tensor], workspace: int = 0) -> None:
        """Add what an operator has returned; its temporary memory, `workspace`, is released at once."""
        for tensor in tensors:
            size = self._rounded(tensor.untyped_storage().nbytes())
            if self._follow(tensor, (size, self.at)):
                self._note(size, self.at)
        if workspace:
            self._note(self._rounded(workspace), self.at)
            self._note(-self._rounded(workspace), self.at)

    def size_of(self, tensors: Iterable[Tensor]) -> int:
        """Bytes that these take, each in a storage of its own."""
        return sum(self._rounded(tensor.nbytes) for tensor in tensors)

    def _rounded(self, size: int) -> int:
        return -(-size // self._block) * self._block

    def _note(self, size: int, owner: LayerPhase) -> None:
        self.allocated += size
        self._log.append((size, owner, self.at))

    def _follow(self, tensor: Tensor, what: tuple[int, LayerPhase] | None) -> bool:
        """Track the storage of a tensor; return whether it is new."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self._followed:
            return False

        def released(_: object) -> None:
            self._followed.pop(key, None)
            if what is not None:
                self._note(-what[0], what[1])

        self._followed[key] = weakref.ref(storage, released)
        return True

    def close(self) -> None:
        """Stop tracking."""
        self._followed.clear()

    @property
    def peak(self) -> int:
        """The most that was held, besides what is ignored."""
        return max((moment.peak for moment in self.curve()), default=0)

    def curve(self) -> list[Moment]:
        """The step as stretches of one layer and phase each, in order."""
        moments: list[Moment] = []
        held = peak = 0
        for place, (size, _, at) in enumerate(self._log):
            held += size
            peak = max(peak, held)
            if place + 1 == len(self._log) or self._log[place + 1][2] != at:
                moments.append(Moment(*at, peak, held))
                peak = held
        return moments

    def holders(self) -> list[Holder]:
        """Who holds the memory at the peak, the largest first."""
        held = peak = end = 0
        for place, (size, _, _) in enumerate(self._log):
            held += size
            if held > peak:
                peak, end = held, place + 1
        found: dict[LayerPhase, int] = defaultdict(int)
        for size, owner, _ in self._log[:end]:
            found[owner] += size
        rows = [Holder(*owner, size) for owner, size in found.items() if size]
        return sorted(rows, key=lambda row: -row.bytes)
