"""How many 32-bit numbers each random operator draws from torch's CPU generator.

    uniform    n                          float32, float16, bfloat16
               2 n                        float64
    normal     16 at a time, for a contiguous tensor of n >= 16 elements; if n is not a multiple of 16 the last
               16 elements are drawn a second time:
               n + (16 if n % 16 else 0)  float32, and twice that for float64
               16 ceil(n / 16)            float16, bfloat16 (in torch 2.11 like float32; `tail_of` finds out)
    normal     4 per started pair         anything smaller or not contiguous: two double samples at a time, of which
                                          the second stays in the generator if the count is odd
    randperm   n - 1

Torch's kernels do this today but promise nothing: `counts_are_known` checks every line against torch once per process.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import torch

from gridwise.deferred_init.random.generator import advanced, layout_is_known, with_sample_of, without_sample

Kind = Literal["uniform", "normal", "permutation"]

LANES = 16  # elements that torch's normal kernel computes together
LARGEST_PERMUTATION = (2**32 - 1) // 20  # above, torch draws 64 bits at a time
_SINGLE = (torch.float32, torch.float16, torch.bfloat16)
_HALF = (torch.float16, torch.bfloat16)


class DrawCount(NamedTuple):
    """What an operator draws, and what it does to the generator's left-over normal sample."""

    draws: int  # of 32 bits
    left_over: int | None  # the draw, from the operator's first, at which the pair began that left a sample over
    keeps_sample: bool  # an earlier left-over sample stays


def draw_count(kind: Kind, n: int, dtype: torch.dtype, contiguous: bool, has_sample: bool) -> DrawCount | None:
    """The draws for `n` elements; None if unknown."""
    if kind == "permutation":
        return DrawCount(max(n - 1, 0), None, True) if n <= LARGEST_PERMUTATION else None
    if dtype in (torch.complex64, torch.complex128):
        if kind == "uniform":
            return None
        n, dtype = 2 * n, torch.float32 if dtype == torch.complex64 else torch.float64
    if dtype not in (*_SINGLE, torch.float64):
        return None
    width = 2 if dtype == torch.float64 else 1
    if kind == "uniform":
        return DrawCount(width * n, None, True)
    if n >= LANES and contiguous:
        draws = tail_of(n, dtype) + LANES if n % LANES else n
        return DrawCount(width * draws, None, True)
    if n == 0:
        return DrawCount(0, None, True)
    pairs, single = divmod(n - has_sample + 1, 2)
    return DrawCount(4 * pairs, None if single else 4 * (pairs - 1), False) if pairs else DrawCount(0, None, False)


def tail_of(n: int, dtype: torch.dtype) -> int:
    """After how many draws (of the dtype's width) a normal fill of n elements redraws its last 16 elements."""
    return n - n % LANES if dtype in _HALF and _halves_skip_the_remainder() else n


@cache
def _halves_skip_the_remainder() -> bool:
    generator = torch.Generator().manual_seed(7)
    start = generator.get_state()
    torch.empty(17, dtype=torch.float16, device="cpu").normal_(generator=generator)
    return torch.equal(generator.get_state(), advanced(start, 32))


@cache
def counts_are_known() -> bool:
    """Whether torch's kernels draw what the table above says."""
    if not layout_is_known():
        return False
    dtypes = (*_SINGLE, torch.float64)
    cases = [("uniform", n, dtype, True) for dtype in dtypes for n in (1, 7, 40)]
    cases += [("normal", n, dtype, c) for dtype in dtypes for n in (1, 2, 15, 16, 17, 40, 64) for c in (True, False)]
    cases += [("normal", n, torch.complex64, True) for n in (3, 8, 9)]
    cases += [("permutation", n, torch.int64, True) for n in (0, 1, 2, 33)]
    return all(_count_holds(*case) for case in cases)  # type: ignore[arg-type]


def _count_holds(kind: Kind, n: int, dtype: torch.dtype, contiguous: bool) -> bool:
    for has_sample in (False, True):
        generator = torch.Generator().manual_seed(7)
        if has_sample:
            torch.empty(1, device="cpu").normal_(generator=generator)
        start = generator.get_state()
        tensor = (
            torch.empty(n, dtype=dtype, device="cpu")
            if contiguous
            else torch.empty(2 * n, dtype=dtype, device="cpu")[::2]
        )
        contiguous = tensor.is_contiguous()
        if kind == "permutation":
            torch.randperm(n, generator=generator, device="cpu")
        elif kind == "uniform":
            tensor.uniform_(generator=generator)
        else:
            tensor.normal_(generator=generator)
        count = draw_count(kind, n, dtype, contiguous, has_sample)
        if count is None:
            return False
        end = generator.get_state()
        expected = advanced(start, count.draws)
        if count.left_over is not None:  # its value is computed in streams.py, not here
            expected = with_sample_of(expected, end)
        elif not count.keeps_sample:
            expected = without_sample(expected)
        if not torch.equal(expected, end):
            return False
    return True
