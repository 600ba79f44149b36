"""Channels last or not: what torch's kernels make of the strides of a tensor, and of slices of one."""

from __future__ import annotations

import random

import torch

from gridwise.operators.formats import memory_format_of

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
KERNELS = {4: torch.ops.aten.upsample_nearest2d, 5: torch.ops.aten.upsample_nearest3d}


def test_slices_keep_the_format_that_torch_gives_their_results() -> None:
    rng, last = random.Random(0), 0
    for _ in range(1000):
        dim = rng.choice([4, 5])
        x = torch.empty([rng.randint(1, 4) for _ in range(dim)])
        if rng.random() < 0.6:
            x = x.contiguous(memory_format=LAST[dim])
        if rng.random() < 0.2:
            x = x.permute(rng.sample(range(dim), dim))
        for d in range(dim):
            if rng.random() < 0.3:
                start = rng.randrange(x.shape[d])
                x = x.narrow(d, start, rng.randint(1, x.shape[d] - start))
        if rng.random() < 0.1:
            x = x[:1].expand(3, *x.shape[1:])
        if not x.is_contiguous():
            made, found = KERNELS[dim](x, [2 * n for n in x.shape[2:]]), memory_format_of(x)
            assert made.is_contiguous(memory_format=found), (x.shape, x.stride())
            last += found is LAST[dim]
    assert last > 100


def test_contiguous_tensors_and_other_dims_are_contiguous() -> None:
    for shape in ((2, 3), (2, 3, 4), (2, 1, 3, 4), (2, 3, 1, 1), (1, 2, 3, 4, 5, 6)):
        assert memory_format_of(torch.empty(shape)) is torch.contiguous_format
        assert memory_format_of(torch.empty(shape).transpose(0, 1)) in (torch.contiguous_format, torch.channels_last)
