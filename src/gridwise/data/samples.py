"""Samples, all of one shape: the rows of one array along one of its dims, or one array per sample."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from ..grid import Shape
from .sources import Slices, Source, as_source

OPEN = 64
"""How many files of samples stay open: the ones read most recently."""


class Samples(ABC):
    """Numbered samples.

    Attributes
    ----------
    label : their name in errors
    shape, dtype : of one sample
    """

    label: str
    shape: Shape
    dtype: np.dtype

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, first: int, slices: Slices, out: np.ndarray) -> None:
        """Fill the rows of `out` with the box `slices` of the samples `first`, `first` + 1, ..."""


class StackedSamples(Samples):
    """The rows of one array along its dim `dim`."""

    def __init__(self, source: Source, dim: int) -> None:
        if not -len(source.shape) <= dim < len(source.shape):
            raise DataError(f"{source.label} has shape {source.shape}, and no dim {dim} along which samples could lie.")
        self.source, self.label, self.dtype = source, source.label, source.dtype
        self.dim = dim % len(source.shape)
        self.shape = source.shape[: self.dim] + source.shape[self.dim + 1 :]

    def __len__(self) -> int:
        return self.source.shape[self.dim]

    def read(self, first: int, slices: Slices, out: np.ndarray) -> None:
        d, rows = self.dim, slice(first, first + len(out))
        wanted = (*slices[:d], rows, *slices[d:])
        if d == 0:
            self.source.read(wanted, out)
        else:
            shape = out.shape[1:]
            found = np.empty((*shape[:d], len(out), *shape[d:]), self.dtype)
            self.source.read(wanted, found)
            np.copyto(out, np.moveaxis(found, d, 0))


class SeparateSamples(Samples):
    """One array per sample: a list of paths or of arrays. The first determines the shape and dtype of all."""

    def __init__(self, items: Sequence[Any]) -> None:
        if not items:
            raise DataError("an empty list has no samples.")
        self.items = list(items)
        self._recent: dict[int, Source] = {}
        self._lock = threading.Lock()
        first = self._source(0)
        self.label, self.shape, self.dtype = f"{len(items)} samples from {first.label} on", first.shape, first.dtype

    def __len__(self) -> int:
        return len(self.items)

    def read(self, first: int, slices: Slices, out: np.ndarray) -> None:
        for sample, row in enumerate(out, start=first):
            source = self._source(sample)
            if (source.shape, source.dtype) != (self.shape, self.dtype):
                raise DataError(
                    f"{self._name_of(sample)} has shape {source.shape} of {source.dtype}, sample 0 has {self.shape} "
                    f"of {self.dtype}: all samples are of one shape.",
                    fix="bring them to one shape and dtype before; a RandomCrop needs that too.",
                )
            source.read(slices, row)

    def _name_of(self, sample: int) -> str:
        item = self.items[sample]
        if isinstance(item, Source):
            return f"sample {sample} ({item.label})"
        return f"sample {sample} ({type(item).__name__ if hasattr(item, 'shape') else item})"

    def _source(self, sample: int) -> Source:
        with self._lock:
            found = self._recent.pop(sample, None) or as_source(self.items[sample])
            self._recent[sample] = found
            if len(self._recent) > OPEN:
                del self._recent[next(iter(self._recent))]
            return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recent": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def as_samples(given: Any, dim: int | str) -> Samples:
    """The samples in a user's argument: the entries of a list, or the rows of anything else along `dim`."""
    if isinstance(dim, str):
        names = tuple(getattr(given, "dims", ()))
        if dim not in names:
            raise DataError(f"`sample_dim` (={dim!r}) is none of the dims {names} of a {type(given).__name__}.")
        dim = names.index(dim)
    return SeparateSamples(given) if isinstance(given, list) else StackedSamples(as_source(given), dim)
