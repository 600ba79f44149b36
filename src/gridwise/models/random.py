"""Random numbers of a model: by default a function of a key and of an element's global index, the same on every grid.

Each call of a model draws one key from torch's generator; the largest among the workers is used. Each operator mixes
its number into it. With `sequential_random()` operators use torch's own numbers instead, those that a single worker
with the whole tensor would draw: every worker draws all of them, and keeps those of its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..nn.engine.grid_random import draw_key, sequential
from ..operators.random.random_stream import RandomStream
from .placement import Workers


@contextmanager
def sequential_random(generator: torch.Generator | None = None) -> Iterator[None]:
    """Let models use torch's own random numbers, those of a single worker, while the body runs.

    For comparisons with the sequential model, on the CPU: every worker draws the numbers of the whole tensor, a piece
    at a time, and keeps those of its block (the zeros and ones of dropout are drawn in one go, a byte each). The
    generators of all workers must be in the same state (``torch.manual_seed``).

    Parameters
    ----------
    generator : the generator to draw from; default: torch's own

    Examples
    --------
    >>> with gridwise.sequential_random():
    ...     pass  # calls of a distributed model
    """
    token = sequential.set((generator,))
    try:
        yield
    finally:
        sequential.reset(token)


def begun(workers: Workers, name: str) -> RandomStream:
    """The random numbers of one call of a model; all workers enter together."""
    source = sequential.get()
    return (
        RandomStream(0, source) if source is not None else RandomStream(draw_key(workers.transport, workers.team, name))
    )


class Replay:
    """Gives the second run of its body the random numbers of the first; torch's own generator is left to torch."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator = generator
        self.first: Tensor | None = None
        self.later: Tensor | None = None

    def __enter__(self) -> None:
        if self.generator is None:
            return
        if self.first is None:
            self.first = self.generator.get_state()
        else:
            self.later = self.generator.get_state()
            self.generator.set_state(self.first)

    def __exit__(self, *error: object) -> None:
        if self.generator is not None and self.later is not None:
            self.generator.set_state(self.later)
