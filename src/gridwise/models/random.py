"""Random numbers of a model: by default a function of a key and of an element's global index, the same on every grid.

One key is drawn per call of a model, from torch's generator, and the largest of all workers counts. Each operator mixes
its number into it. With `sequential_random()` operators take torch's own numbers instead, those that one worker with the
whole tensor would draw: every worker draws all of them, and keeps its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from ..grid import Box, Shape
from ..nn.random import GAMMA, draw_key, keep_mask, uniform_numbers
from .placement import Workers

_sequential: ContextVar[tuple[torch.Generator | None] | None] = ContextVar("sequential", default=None)
"""The generator to draw from, torch's own if that is None; None where numbers are those of global indices."""


@contextmanager
def sequential_random(generator: torch.Generator | None = None) -> Iterator[None]:
    """Let models take torch's own random numbers, those of a single worker, while the body runs.

    For comparisons with the sequential model, on the CPU: every worker draws the numbers of the whole tensor. The generators
    of all workers must be in the same state (``torch.manual_seed``).

    Parameters
    ----------
    generator : which to draw from; default: torch's own

    Examples
    --------
    >>> with gridwise.sequential_random():
    ...     pass  # calls of a distributed model
    """
    token = _sequential.set((generator,))
    try:
        yield
    finally:
        _sequential.reset(token)


@dataclass(frozen=True)
class Stream:
    """The random numbers of one operator in one call."""

    key: int
    drawn: tuple[torch.Generator | None] | None = None
    """The generator to draw from, instead."""

    @classmethod
    def begin(cls, workers: Workers, name: str) -> Stream:
        """For one call of a model; all workers enter together."""
        drawn = _sequential.get()
        return cls(0, drawn) if drawn is not None else cls(draw_key(workers.transport, workers.team, name))

    @property
    def sequential(self) -> bool:
        return self.drawn is not None

    @property
    def generator(self) -> torch.Generator | None:
        return self.drawn[0] if self.drawn is not None else None

    def at(self, number: int) -> Stream:
        """For one operator of the call."""
        return self if self.sequential else Stream((self.key + GAMMA * (2 * number + 1)) & (2**63 - 1))

    def kept(self, x: Tensor, p: float, shape: Shape, block: Box | None) -> Tensor:
        """Which elements of a block, of a tensor of `shape`, are kept where each is dropped with probability `p`."""
        if self.sequential:
            drawn = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=self.generator)
            return _cut(drawn, block)
        return keep_mask(self.key, p, shape or (1,), block or Box.of_shape(shape or (1,)), x.device).view(
            block.shape if block else shape
        )

    def dropped(self, x: Tensor, p: float, shape: Shape, block: Box | None, inplace: bool = False) -> Tensor:
        """`x` with elements set to zero, the others scaled."""
        return self.scaled(x, self.kept(x, p, shape, block), p, inplace)

    def scaled(self, x: Tensor, kept: Tensor, p: float, inplace: bool) -> Tensor:
        if self.sequential:
            noise = kept.to(x.dtype).div_(1 - p) if p < 1 else kept.to(x.dtype)
        else:
            noise = kept.to(x.dtype) * (1 / (1 - p) if p < 1 else 0.0)
        return x.mul_(noise) if inplace else x * noise

    def uniform(self, shape: Shape, block: Box | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Numbers in [0, 1)."""
        if self.sequential:
            return _cut(torch.rand(shape, dtype=dtype, device=device, generator=self.generator), block)
        numbers = uniform_numbers(self.key, shape or (1,), block or Box.of_shape(shape or (1,)), device)
        return numbers.view(block.shape if block else shape).to(dtype)

    def normal(self, shape: Shape, block: Box | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Normally distributed numbers: by Box and Muller, of two uniform ones each."""
        if self.sequential:
            return _cut(torch.randn(shape, dtype=dtype, device=device, generator=self.generator), block)
        first, second = (stream.uniform(shape, block, torch.float64, device) for stream in (self, self.at(1)))
        radius = (-2 * torch.log1p(-first)).sqrt()
        return (radius * torch.cos(2 * torch.pi * second)).to(dtype)

    def integers(
        self, low: int, high: int, shape: Shape, block: Box | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        if self.sequential:
            return _cut(torch.randint(low, high, shape, dtype=dtype, device=device, generator=self.generator), block)
        return (low + self.uniform(shape, block, torch.float64, device) * (high - low)).floor().to(dtype)


def _cut(whole: Tensor, block: Box | None) -> Tensor:
    return whole if block is None else whole[block.slices].clone()


class Replay:
    """Lets what runs inside a second time draw the numbers of the first; torch's own generator is torch's business."""

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
