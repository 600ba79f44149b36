"""The random numbers of one operator: by the global indices of elements, or those that torch draws for a whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ...grid import Box, Shape
from .random_numbers import Key, flat_positions, keep_mask, key_at, uniform_numbers

AT_ONCE, LAST = 1 << 20, 16
"""How many numbers are drawn at a time, and the smallest last piece: torch makes normal numbers 16 at a time."""


@dataclass(frozen=True)
class Elements:
    """The elements of a global tensor for which numbers are wanted."""

    shape: Shape
    block: Box | None = None
    """None for all elements."""
    order: tuple[int, ...] = ()
    """The dims of the global tensor by decreasing stride, as torch draws; empty for their natural order."""

    @property
    def own(self) -> Shape:
        return self.shape if self.block is None else self.block.shape

    def of_indices(self, make: Callable[[Shape, Box], Tensor]) -> Tensor:
        """The result of `make` for the global shape and the block, which it gets with at least one dim."""
        shape = self.shape or (1,)
        return make(shape, (self.block if self.shape else None) or Box.of_shape(shape)).view(self.own)

    def drawn(self, make: Callable[[int], Tensor], at_once: int) -> Tensor:
        """The block's part of the numbers of the whole tensor, which `make` draws in pieces of `at_once`."""
        count = prod(self.shape)
        order = self.order or tuple(range(len(self.shape)))
        if self.block is None:
            whole = make(count).view([self.shape[d] for d in order])
            return whole.permute(_inverse(order)).contiguous()
        turned = Box(tuple(self.block.start[d] for d in order), tuple(self.block.stop[d] for d in order))
        offsets = flat_positions([self.shape[d] for d in order], turned)
        parts, done, start = list[Tensor](), 0, 0
        while start < count:
            length = at_once if count - start >= at_once + LAST else count - start
            piece = make(length)
            upto = int(torch.searchsorted(offsets, start + length))
            parts.append(piece[offsets[done:upto] - start])
            start, done = start + length, upto
        return torch.cat(parts or [make(0)]).view(turned.shape).permute(_inverse(order)).contiguous()


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


@dataclass(frozen=True)
class RandomStream:
    """The random numbers of one operator in one call."""

    key: Key
    source: tuple[torch.Generator | None] | None = None
    """A tuple with the generator to draw from (None: torch's own), or None to compute numbers from the key."""

    @property
    def sequential(self) -> bool:
        return self.source is not None

    @property
    def generator(self) -> torch.Generator | None:
        return self.source[0] if self.source is not None else None

    def at(self, number: int) -> RandomStream:
        """The stream of one operator of the call."""
        return self if self.sequential else RandomStream(key_at(self.key, number))

    def kept(self, x: Tensor, p: float, elements: Elements) -> Tensor:
        """Which elements are kept if each is dropped with probability `p`; `x` gives dtype and device."""
        if not self.sequential:
            return elements.of_indices(lambda shape, block: keep_mask(self.key, p, shape, block, x.device))
        # MKL's numbers do not depend on the dtype, but a whole draw derives from a single number of the generator
        by_mkl = torch.backends.mkl.is_available() and x.device.type == "cpu"
        dtype, at_once = (torch.bool, prod(elements.shape)) if by_mkl else (x.dtype, AT_ONCE)

        def make(count: int) -> Tensor:
            return torch.empty(count, dtype=dtype, device=x.device).bernoulli_(1 - p, generator=self.generator)

        return elements.drawn(make, at_once)

    def scaled(self, x: Tensor, kept: Tensor, p: float, inplace: bool = False) -> Tensor:
        """`x`, scaled, where it is kept, and zero elsewhere."""
        noise = kept.to(x.dtype)
        if self.sequential:
            noise = noise.div_(1 - p) if p < 1 else noise
        else:
            noise = noise * (1 / (1 - p) if p < 1 else 0.0)
        return x.mul_(noise) if inplace else x * noise

    def uniform(self, elements: Elements, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Numbers in [0, 1)."""
        if self.sequential:
            return self._drawn(torch.rand, elements, dtype, device)
        _check_real(dtype)
        numbers = elements.of_indices(lambda shape, block: uniform_numbers(self.key, shape, block, device))
        if dtype == torch.float64:
            return numbers
        steps = 2 / torch.finfo(dtype).eps  # cut off, as torch does: rounding would make some of them 1
        return numbers.mul_(steps).floor_().div_(steps).to(dtype)

    def chosen(self, x: Tensor, elements: Elements) -> Tensor:
        """Zeros and ones: each is one with the probability that `x` has for it."""
        dtype = x.dtype if self.sequential else torch.float64
        return (self.uniform(elements, dtype, x.device) < x).to(x.dtype)

    def _drawn(
        self, make: Callable[..., Tensor], elements: Elements, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        like = {"dtype": dtype, "device": device, "generator": self.generator}
        return elements.drawn(lambda n: make((n,), **like), AT_ONCE)

    def filled(
        self, fill: Callable[[Tensor, torch.Generator | None], Tensor], elements: Elements, dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:  # fmt: skip
        """Torch's own numbers of any distribution: `fill` draws them into a tensor, all in one go."""
        return elements.drawn(
            lambda n: fill(torch.empty(n, dtype=dtype, device=device), self.generator), prod(elements.shape)
        )

    def normal(self, elements: Elements, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Normally distributed numbers, by the Box-Muller transform of two uniform ones each."""
        if self.sequential:
            return self._normal(elements, dtype, device)
        _check_real(dtype)
        first, second = (stream.uniform(elements, torch.float64, device) for stream in (self, self.at(1)))
        radius = (-2 * torch.log1p(-first)).sqrt()
        return (radius * torch.cos(2 * torch.pi * second)).to(dtype)

    def _normal(self, elements: Elements, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Torch's normal numbers, which depend on the order of the strides."""
        if not elements.order:
            return self._drawn(torch.randn, elements, dtype, device)
        memory = torch.empty([elements.shape[d] for d in elements.order], dtype=dtype, device=device)
        whole = memory.permute(_inverse(elements.order)).normal_(generator=self.generator)
        return whole if elements.block is None else whole[elements.block.slices].clone()

    def integers(self, low: int, high: int, elements: Elements, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Integers in [low, high)."""
        if self.sequential:
            return self._drawn(partial(torch.randint, low, high), elements, dtype, device)
        steps = (self.uniform(elements, torch.float64, device) * (high - low)).floor().to(torch.int64)
        return (steps + low).to(dtype)  # added as integers: a sum of floats might be rounded to `high`


def _check_real(dtype: torch.dtype) -> None:
    if dtype.is_complex:
        raise UnsupportedError(
            f"random numbers of {dtype} are not drawn on a grid.\n"
            "  fix: torch.complex of two real tensors, or gridwise.sequential_random()."
        )
