"""Training data in batches, from arrays, split and shuffled here, or from a loader of pairs; with their checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError
from ..nn.data_struct import of_array

Batch = tuple[Tensor, Tensor]
Shape = tuple[int, ...]


def as_rows(value: object, name: str, what: str) -> Tensor:
    """`value` as a tensor with rows, in its own precision."""
    try:
        out = value if isinstance(value, Tensor) else of_array(value)
    except (TypeError, ValueError) as error:  # words, dates, rows of unequal lengths
        raise ArgumentError(f"{what}: `{name}` is not an array of numbers: {error}") from error
    if out.ndim == 0:
        raise ArgumentError(f"{what}: `{name}` is one number.\n  fix: an array of rows.")
    return out


def as_columns(y: Tensor) -> Tensor:
    """`y` as (row, column), also without rows."""
    return y.flatten(1) if y.ndim > 1 else y[:, None]


class Batches:
    """Pairs of inputs and observations, for any number of epochs.

    `blocks` yields all data once, in order, as (where, x, y) with `where` for error messages; `epoch` yields batches on
    `device`.
    """

    def __init__(self, x: object, y: object, size: int, shuffle: bool, seed: int, device: torch.device) -> None:
        if size < 1:
            raise ArgumentError(f"fit: `batch_size` (={size}) is less than one.")
        self.size, self.shuffle, self.device = size, shuffle, device
        self.generator = torch.Generator().manual_seed(seed)
        self.loader: Iterable[Any] | None = None
        if y is not None:
            self.x, self.y = as_rows(x, "x", "fit"), as_rows(y, "y", "fit")
            if len(self.x) != len(self.y):
                raise ArgumentError(f"fit: `x` has {len(self.x)} rows, `y` has {len(self.y)}.")
        elif not isinstance(x, Iterable) or isinstance(x, np.ndarray | Tensor):
            raise ArgumentError("fit: give arrays `x` and `y`, or one DataLoader that yields pairs of them.")
        elif isinstance(x, Iterator):
            raise ArgumentError(
                f"fit: `x` is a {type(x).__name__}, which gives its batches once; they are needed once for each epoch, "
                "and once before.\n  fix: a DataLoader, or a list of the batches."
            )
        else:
            self.loader = x

    def blocks(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        if self.loader is None:
            yield "fit", self.x, self.y
            return
        for number, pair in enumerate(self.loader):
            what = f"fit, batch {number}"
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ArgumentError(f"{what}: the loader gave a {type(pair).__name__}.\n  fix: pairs (x, y).")
            x, y = as_rows(pair[0], "x", what), as_rows(pair[1], "y", what)
            if len(x) != len(y):
                raise ArgumentError(f"{what}: `x` has {len(x)} rows, `y` has {len(y)}.")
            yield what, x, y

    def count(self, blocks: int) -> int:
        """The number of batches in an epoch, for data in this many `blocks`."""
        return -(-len(self.x) // self.size) if self.loader is None else blocks

    def epoch(self) -> Iterator[Batch]:
        if self.loader is not None:
            for _, x, y in self.blocks():
                yield x.to(self.device), y.to(self.device)
            return
        n = len(self.x)
        self.x, self.y = self.x.to(self.device), self.y.to(self.device)
        order = torch.arange(n, device="cpu")
        if self.shuffle:
            order = torch.randperm(n, generator=self.generator, device="cpu")
        for rows in order.to(self.device).split(self.size) if n else ():
            yield self.x[rows], self.y[rows]
