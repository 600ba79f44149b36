"""A sum that may run in the background: several at once, of every dtype that can be summed, also over a few workers."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.comm.transports.counting import Ledger
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


@workers(2, 3, 4)
@pytest.mark.parametrize("wire", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_half_the_bits_on_the_wire(wire: torch.dtype, dtype: torch.dtype) -> None:
    """Every number is rounded once, the sum is taken in its own dtype and rounded once more; all have the same bits."""
    P = gridwise.world()
    every = torch.randn(P.size, 5003, generator=torch.Generator().manual_seed(1), dtype=dtype)
    few = torch.full((9,), 1 / 3, dtype=dtype)
    x = every[P.rank].clone()
    posted = [P.transport.post_sum(each, P.team, "a sum", wire) for each in (x, few)]
    for pending in posted:
        pending.wait()
    exact = torch.zeros(5003, dtype=dtype)
    for row in every:
        exact += row.to(wire)
    assert (x == exact.to(wire)).all()
    torch.testing.assert_close(few, torch.full((9,), P.size / 3, dtype=dtype))


@workers(3)
def test_sums_that_are_waited_for_in_any_order() -> None:
    P = gridwise.world()
    values = [torch.full((size,), P.rank + 1.0) for size in (5000, 3, 70_000, 5000)]
    posted = [P.transport.post_sum(x, P.team) for x in values]
    order = [2, 0, 3, 1] if P.rank else [1, 3, 0, 2]
    for i in order:
        posted[i].wait()
    assert all((x == 6.0).all() for x in values)


def test_a_pretended_worker_counts_half_the_bytes() -> None:
    ledger = Ledger(4)
    transport = ledger.worker(1)
    x = torch.empty(4096, device="meta")
    for wire in (None, torch.bfloat16):
        transport.post_sum(x, transport.everyone, "a sum", wire).wait()
    assert [entry.nbytes for entry in ledger.entries[1]] == [2 * 4096 * 4 * 3 // 4, 2 * 4096 * 2 * 3 // 4]
