"""The order of samples: determined by the seed and the epoch alone, so the same on all workers and on any grid.

A position is an epoch and how many of its samples have been handed out. That is all that has to be saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..comm.agreement import key_of
from ..errors import DataError


@dataclass(frozen=True)
class Order:
    """`length` samples, in their own order or in one that is drawn anew for each epoch."""

    length: int
    shuffle: bool
    seed: int

    def samples(self, epoch: int) -> torch.Tensor:
        """The numbers of all samples, in the order of the epoch."""
        if not self.shuffle:
            return torch.arange(self.length, device="cpu")
        generator = torch.Generator(device="cpu").manual_seed(key_of(f"order {self.seed} {epoch}"))
        return torch.randperm(self.length, generator=generator, device="cpu")


class Position:
    """How far a loader has come: `done` samples or batches of epoch `epoch` were handed out."""

    def __init__(self) -> None:
        self.epoch = self.done = 0
        self._is_loaded = False

    def begin(self) -> int:
        """Where a pass starts: at 0, or at the position that was loaded."""
        self.done = self.done if self._is_loaded else 0
        self._is_loaded = False
        return self.done

    def end(self) -> None:
        """Go on to the next epoch: a pass is complete."""
        self.epoch, self.done = self.epoch + 1, 0

    def state(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": self.done, **settings}

    def load(self, state: Mapping[str, Any], settings: Mapping[str, Any], says: str) -> None:
        """Continue from a saved state; raises unless it was saved with the same settings."""
        wrong = [f"`{k}`: saved {state.get(k)!r}, here {v!r}" for k, v in settings.items() if state.get(k) != v]
        numbers = [state.get("epoch"), state.get("done")]
        if wrong or not all(type(n) is int and n >= 0 for n in numbers):
            raise DataError(
                f"{says} cannot go on from this state: samples would come twice or never.",
                wrong or [f"its position is {numbers}"],
                "make the loader with what was saved; the grid and the batch size may differ.",
            )
        self.epoch, self.done = state["epoch"], state["done"]
        self._is_loaded = True


def consecutive(samples: Sequence[int], longest: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Runs of consecutive samples, to be read or written at once, each with its place in the batch.

    >>> list(consecutive((4, 5, 6, 2), longest=2))
    [(0, (4, 5)), (2, (6,)), (3, (2,))]
    """
    start = 0
    for place in range(1, len(samples) + 1):
        if place == len(samples) or samples[place] != samples[place - 1] + 1 or place - start >= longest:
            yield start, samples[start:place]
            start = place
