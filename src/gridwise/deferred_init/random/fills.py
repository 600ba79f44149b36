"""A block of a random fill, without the rest of it.

`uniform_` and `normal_` fill a contiguous tensor of n elements in memory order, in which a block is a set of contiguous
runs:

    uniform   element i comes from draw i (float64: draws 2i and 2i+1)
    normal    elements 16k .. 16k+15 are computed together from draws 16k .. 16k+15; if n is not a multiple of 16, the
              last 16 elements are then redrawn from 16 more draws (`draws.tail_of` says which)

Long runs are filled in place, advancing the generator from one to the next. Short runs with short gaps, along any dims,
are filled together in a scratch buffer of at most `SCRATCH` elements and copied out, so that a block never takes much
longer than the whole tensor. `fills_are_known` checks all this against torch once per process.
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
GAP = 1 << 14  # elements; a gap of up to this length is drawn rather than skipped


class Fill(NamedTuple):
    """A random fill of a whole contiguous tensor of n elements; `parameters` are low and high, or mean and std."""

    kind: Kind
    n: int
    dtype: torch.dtype
    mark: Mark
    parameters: tuple[float, float]

    def can_be_cut(self) -> bool:
        return self.kind == "uniform" or self.n >= LANES

    def draw(self, out: Tensor, start: int) -> None:
        """Fill the one-dimensional contiguous `out` as torch would, with draws from that of element `start` on."""
        width = 2 if self.dtype == torch.float64 else 1
        first = self.mark.draws + width * start
        generator = generator_at(self.mark.stream.words_at(first))
        if self.kind == "uniform":
            out.uniform_(*self.parameters, generator=generator)
        else:
            out.normal_(*self.parameters, generator=generator)
        self.mark.stream.reached(first + width * out.numel(), generator.get_state())

    def run(self, out: Tensor, start: int) -> None:
        """Write elements `start`, `start + 1`, ... of the fill to the one-dimensional contiguous `out`."""
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
        """`length` elements from `start` on, all in one group of 16."""
        group = torch.empty(LANES, dtype=self.dtype, device="cpu")
        self.draw(group, start // LANES * LANES)
        return group[start % LANES : start % LANES + length]


def fill_block(fill: Fill, shape: Sequence[int], block: Box, out: Tensor) -> None:
    """Write a block of the fill of a contiguous tensor of this shape to the contiguous `out`."""
    if out.numel() == 0:
        return
    if not shape:  # a 0-dim tensor
        shape, block = (1,), Box.of_shape((1,))
    if not fill.can_be_cut():  # fewer than 16 normals: they may use up a left-over sample
        whole = torch.empty(list(shape), dtype=fill.dtype, device="cpu")
        whole.normal_(*fill.parameters, generator=generator_at(fill.mark.state()))
        out.view(-1).copy_(whole[block.slices].reshape(-1))
        return
    _Cut(fill, shape, block.shape).make(0, flat_span(shape, block)[0], out.view(block.shape))


class _Cut:
    """A block of a fill, computed piece by piece, in pieces as large as is worthwhile.

    In dims d and later, at fixed earlier indices, the block spans `spans[d]` elements of the whole tensor and contains
    `volumes[d]` of them. If the two are equal it is one contiguous run. It is `joined[d]` if no gap in it is worth
    advancing the generator for: then the span is drawn into a scratch buffer, as much of it as fits, and the block's
    elements are copied out.
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
        """Write the part in dims d and later that starts at element `start` of the whole to the contiguous `out`."""
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
                span = min(count * stride, self.fill.n - begin)  # with the last gap, so that the next part starts there
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
