"""A block of a random fill, without the rest of it.

`uniform_` and `normal_` fill a contiguous tensor of n elements in order of memory, so a block is a set of runs of
that order:

    uniform   element i is made from draw i (float64: draws 2i and 2i+1)
    normal    elements 16k .. 16k+15 are made together from draws 16k .. 16k+15; when n is no multiple of 16, the
              last 16 elements are then made anew from 16 more draws (`draws.tail_of` says which)

Long runs are made in place, with the generator moved from one to the next. Short runs with short gaps are made
together in a scratch of at most `SCRATCH` elements and copied out, in whatever dims they lie, so that a block never takes
much longer than the whole. `fills_are_known` compares all this with torch
once per process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from gridwise.deferred_init.random.draws import LANES, Kind, counts_are_known, tail_of
from gridwise.deferred_init.random.generator import generator_at
from gridwise.deferred_init.random.streams import Mark, Stream
from gridwise.grid import Box, flat_span, strides_of

SCRATCH = 1 << 20  # elements
GAP = 1 << 14  # elements between two runs that are made rather than stepped over


class Fill(NamedTuple):
    """A random fill of a whole contiguous tensor: what, of how many elements, from where, with which two parameters."""

    kind: Kind
    n: int
    dtype: torch.dtype
    mark: Mark
    parameters: tuple[float, float]

    def can_be_cut(self) -> bool:
        return self.kind == "uniform" or self.n >= LANES

    def draw(self, out: Tensor, start: int) -> None:
        """Fill the one-dimensional contiguous `out` with draws from element `start` of the fill on, as torch would."""
        width = 2 if self.dtype == torch.float64 else 1
        first = self.mark.draws + width * start
        generator = generator_at(self.mark.stream.words_at(first))
        if self.kind == "uniform":
            out.uniform_(*self.parameters, generator=generator)
        else:
            out.normal_(*self.parameters, generator=generator)
        self.mark.stream.reached(first + width * out.numel(), generator.get_state())

    def run(self, out: Tensor, start: int) -> None:
        """Make elements `start`, `start + 1`, ... of the fill in the one-dimensional contiguous `out`."""
        if self.kind == "uniform":
            return self.draw(out, start)
        stop = start + out.numel()
        whole = self.n - self.n % LANES  # elements in complete groups
        middle = min(-(-start // LANES) * LANES, stop)
        last = max(min(stop, whole) // LANES * LANES, middle)
        if start < middle and start < whole:
            out[: middle - start] = self.groups(middle - start, start)
        if middle < last:
            self.draw(out[middle - start : last - start], middle)
        if last < min(stop, whole):
            out[last - start : min(stop, whole) - start] = self.groups(min(stop, whole) - last, last)
        tail = self.n - LANES
        if whole != self.n and stop > tail:
            again = torch.empty(LANES, dtype=self.dtype, device="cpu")
            self.draw(again, tail_of(self.n, self.dtype))
            begin = max(start, tail)
            out[begin - start :] = again[begin - tail : stop - tail]
        return None

    def groups(self, length: int, start: int) -> Tensor:
        """`length` elements from `start` on, all of one group."""
        group = torch.empty(LANES, dtype=self.dtype, device="cpu")
        self.draw(group, start // LANES * LANES)
        return group[start % LANES : start % LANES + length]


def fill_block(fill: Fill, shape: Sequence[int], block: Box, out: Tensor) -> None:
    """Make a block of a fill of a contiguous tensor of this shape, in the contiguous `out`."""
    if out.numel() == 0:
        return
    if not shape:  # a number
        shape, block = (1,), Box.of_shape((1,))
    if not fill.can_be_cut():  # fewer than 16 normals: they may use up a left-over sample
        whole = torch.empty(list(shape), dtype=fill.dtype, device="cpu")
        whole.normal_(*fill.parameters, generator=generator_at(fill.mark.state()))
        out.view(-1).copy_(whole[block.slices].reshape(-1))
        return
    _Cut(fill, shape, block.shape).make(0, flat_span(shape, block)[0], out.view(block.shape))


class _Cut:
    """A block of a fill, made piece by piece: what is worth making in one go is.

    From dim d on, at fixed indices before it, the block reaches over `spans[d]` elements of the whole, and holds
    `volumes[d]` of them. Where these are the same it is one run of memory. It is `joined[d]` if no gap in it is worth a
    restart of the generator: then all of the span is made in a scratch, as much as fits, and what is wanted is copied.
    """

    def __init__(self, fill: Fill, shape: Sequence[int], extents: Sequence[int]) -> None:
        self.fill = fill
        self.extents = list(extents)
        self.strides = strides_of(shape)
        self.spans, self.volumes, self.joined = [1], [1], [True]
        for extent, stride in zip(reversed(self.extents), reversed(self.strides), strict=True):
            gap = stride - self.spans[0] if extent > 1 else 0
            self.joined.insert(0, self.joined[0] and gap <= GAP)
            self.spans.insert(0, self.spans[0] + (extent - 1) * stride)
            self.volumes.insert(0, self.volumes[0] * extent)

    def make(self, d: int, start: int, out: Tensor) -> None:
        """Make the part from dim d on that starts at element `start` of the whole, in the contiguous `out`."""
        if self.spans[d] == self.volumes[d]:
            return self.fill.run(out.view(-1), start)
        stride, inner = self.strides[d], self.spans[d + 1]
        at_once = 1 + max(0, (SCRATCH - inner) // stride) if self.joined[d] else 1
        for first in range(0, self.extents[d], at_once):
            part = out[first : first + at_once]
            begin, count = start + first * stride, len(part)
            if count == 1:
                self.make(d + 1, begin, part[0])
            else:
                span = min(count * stride, self.fill.n - begin)  # with the last gap: the next part goes on from there
                scratch = torch.empty(span, dtype=self.fill.dtype, device="cpu")
                self.fill.run(scratch, begin)
                part.copy_(scratch.as_strided(part.shape, self.strides[d:]))
        return None


@cache
def fills_are_known() -> bool:
    """Whether torch's kernels fill in the order described above, on this processor."""
    if not counts_are_known():
        return False
    return all(
        _fill_holds(kind, n, dtype)
        for kind in ("uniform", "normal")
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        for n in (16, 37, 176, 1003)
    )


def _fill_holds(kind: Kind, n: int, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(n)
    stream = Stream(generator.get_state())
    whole = torch.empty(n, dtype=dtype, device="cpu")
    _ = whole.uniform_(-1, 2, generator=generator) if kind == "uniform" else whole.normal_(-1, 2, generator=generator)
    fill = Fill(kind, n, dtype, Mark(stream, 0, None), (-1.0, 2.0))
    for start, stop in ((0, n), (0, 5), (n - 3, n), (n // 3, n // 3 + 9), (n // 2, n), (1, n - 1)):
        part = torch.empty(stop - start, dtype=dtype, device="cpu")
        fill.run(part, start)
        if not torch.equal(part, whole[start:stop]):
            return False
    return True
