"""A sum that may run in the background: several at once, of every dtype that can be summed, also over a few workers."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.testing import workers


@workers(1, 2, 4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_sums_in_place_and_in_any_number(dtype: torch.dtype) -> None:
    P = gridwise.world()
    posted = []
    for size in (3, 0, 1 << 18, 7):
        x = torch.full((size,), P.rank + 1).to(dtype)
        posted.append((P.transport.post_sum(x, P.team), x))
    for pending, x in posted:
        pending.wait()
        assert (x == P.size * (P.size + 1) // 2).all()


@workers(3)
def test_a_team() -> None:
    P, x = gridwise.world(), torch.ones(5)
    if P.rank != 1:
        P.transport.post_sum(x, (0, 2)).wait()
    assert x.tolist() == [1.0 if P.rank == 1 else 2.0] * 5
