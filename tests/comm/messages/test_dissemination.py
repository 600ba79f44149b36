"""Few numbers of many workers: everyone hears everyone, in log2(n) messages each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gridwise
from gridwise.comm.messages import dissemination
from gridwise.comm.transports import torch_distributed
from gridwise.testing import workers


@workers(2, 3, 4, 5, transports=["gloo"])
def test_agreements_of_a_large_team_over_gloo() -> None:
    """As between machines, with every team a large one."""
    P = gridwise.world()
    transport: Any = P.transport
    node, transport.node = transport.node, None
    before, torch_distributed.MANY = torch_distributed.MANY, 1
    sent: list[int] = []
    real = transport._post
    transport._post = lambda sends, receives: (sent.extend(peer for peer, _ in sends), real(sends, receives))[1]
    try:
        values = np.array([P.rank, -P.rank, 7 * P.rank], dtype=np.int64)
        transport.all_max(values, P.team)
        assert values.tolist() == [P.size - 1, 0, 7 * (P.size - 1)]
        assert len(sent) == dissemination.messages(P.size) < P.size
        sent.clear()
        told = transport.gather_bytes(b"x" * P.rank + b"!", P.team)
        assert told == [b"x" * rank + b"!" for rank in range(P.size)]
        assert len(sent) == 2 * dissemination.messages(P.size)
    finally:
        transport.node, torch_distributed.MANY = node, before
        del transport._post


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13, 64])
def test_everyone_hears_everyone(size: int) -> None:
    """All workers in one process, step by step."""
    team, boxes = tuple(range(10, 10 + size)), dict[Any, Any]()
    found = np.zeros((size, size), dtype=np.int64)
    log = dissemination.messages(size)
    assert size <= 2**log < 2 * size
    known = [np.eye(size, dtype=np.int64)[i] for i in range(size)]
    plans = [list(dissemination._steps(team, rank)) for rank in team]
    for step in range(log):
        for i in range(size):
            boxes[plans[i][step][0]] = (team[i], known[i].copy())
        for i in range(size):
            source, values = boxes[team[i]]
            assert source == plans[i][step][1]
            found[i] = np.maximum(known[i], values)
        known = [row.copy() for row in found]
    assert all((row == 1).all() for row in known)


def test_rows_come_in_the_order_of_the_team() -> None:
    rows = dissemination.all_gather(torch.tensor([4.0]), (3,), 3, lambda *_: pytest.fail("there is nobody to tell"))
    assert rows.tolist() == [[4.0]]
