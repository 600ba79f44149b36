"""The tensors that a manifest names, by key. Most are whole in one block: these stay in columns (`wholes`).

Whoever asks for one tensor gets it as an object, made for him; whoever wants ten thousand takes the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import repeat

import numpy as np

from .chunks import DIGITS
from .manifest import StoredBlock, StoredTensor
from .whole_columns import NO_WHOLES, WholeTensors


class StoredTensors(Mapping[str, StoredTensor]):
    """Whole tensors, the `others`, and the `order` of all keys; by default the whole ones come first."""

    def __init__(
        self, wholes: WholeTensors, others: Mapping[str, StoredTensor], order: Collection[str] | None = None
    ) -> None:
        self.wholes = wholes
        self.others = others
        self._places = dict(zip(wholes.keys, range(len(wholes.keys)), strict=True))
        self._order = order if order is not None else [*wholes.keys, *others]

    @classmethod
    def spelt_out(cls, tensors: Mapping[str, StoredTensor]) -> StoredTensors:
        return cls(NO_WHOLES, tensors)

    @property
    def is_unique(self) -> bool:
        """Whether no key stands for two tensors."""
        return len(self._places) == len(self.wholes.keys) and self._places.keys().isdisjoint(self.others)

    def places(self, keys: list[str]) -> np.ndarray:
        """Where in the columns each tensor is; -1: it is not whole, or not there."""
        first = self._places.get(keys[0], 0) if keys else 0
        if self.wholes.keys[first : first + len(keys)] == keys:  # as they mostly are: saved together, in the same order
            return np.arange(first, first + len(keys))
        return np.fromiter(map(self._places.get, keys, repeat(-1)), dtype=np.int64, count=len(keys))

    def __getitem__(self, key: str) -> StoredTensor:
        place = self._places.get(key)
        if place is None:
            return self.others[key]
        _, kinds, codes, shapes, sums, files, starts, _ = self.wholes
        block = StoredBlock(int(files[place]), int(starts[place]), f"{sums[place]:0{DIGITS}x}", None)
        return StoredTensor(codes[kinds[place]], shapes[kinds[place]], (block,))

    def __contains__(self, key: object) -> bool:
        return key in self._places or key in self.others

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)
