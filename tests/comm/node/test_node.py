"""Collectives among workers of one machine, for every number of them and every size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.comm.node import segment
from gridwise.testing import workers

from .crew import crew


@pytest.fixture(autouse=True)
def small_slots(monkeypatch):
    monkeypatch.setattr(segment, "CHUNK", 16384)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_agreements_and_gatherings(n):
    ranks = [3 * i + 1 for i in range(n)]

    def body(node, rank):
        team = tuple(ranks)
        values = np.array([rank, -rank, 7], dtype=np.int64)
        node.all_max(values, team)
        assert values.tolist() == [ranks[-1], -1, 7]
        texts = [b"x" * (r % 4) for r in ranks]
        assert node.gather_bytes(b"x" * (rank % 4), [len(t) for t in texts], team) == texts
        for root in (ranks[0], ranks[-1]):
            x = torch.full((5000,), rank, dtype=torch.uint8)
            node.copy_from(x, root, team)
            assert (x == root).all()

    crew(n, body, ranks)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("count", [1, 10, 3000, 50_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_sums_are_bitwise_the_same_everywhere_and_every_time(n, count, dtype):
    numbers = [torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    parts = [(x * 1e3).to(dtype) for x in numbers]

    def body(node, rank):
        total = torch.empty(count, dtype=dtype)
        node.all_sum(total, parts[rank], tuple(range(n)))
        inplace = parts[rank].clone()
        node.all_sum(inplace, inplace, tuple(range(n)))
        assert torch.equal(total, inplace)
        return total

    first, *others = crew(n, body)
    assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(first, torch.stack(parts).sum(0), rtol=1e-5, atol=1e-2)


@workers(2, 3)
def test_workers_of_this_machine_find_one_another():
    node = gridwise.world().transport.node
    assert node is not None
    assert node.covers(gridwise.world().team, 1 << 20)


def test_it_can_be_switched_off():
    with Pool(2, "gloo", env={"GRIDWISE_SHARED_MEMORY": "off"}) as pool:
        assert pool.run(lambda: gridwise.world().transport.node is None) == [True, True]
