"""Agreements: the element-wise maximum over a team, however many workers and numbers, beside everything else under way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gridwise
from gridwise.comm.torchdist import FEW, SHORT
from gridwise.testing import workers


def numbers(count: int, rank: int, turn: int = 0) -> np.ndarray:
    """Of each worker others, some of them negative."""
    return (np.arange(count) * 7 + rank * 5 + turn) % 11 - 5


def agreed(count: int, team: tuple[int, ...], turn: int = 0) -> np.ndarray:
    return np.max([numbers(count, rank, turn) for rank in team], axis=0)


@workers(2, 3, FEW, FEW + 1)
@pytest.mark.parametrize("count", [0, 1, 5, SHORT, SHORT + 1])
def test_all_have_the_maximum(count: int) -> None:
    P = gridwise.world()
    for turn in range(3):
        values = numbers(count, P.rank, turn)
        P.transport.all_max(values, P.team)
        assert np.array_equal(values, agreed(count, P.team, turn))


@workers(4)
def test_teams_that_overlap_agree_by_themselves() -> None:
    P = gridwise.world()
    for turn, team in enumerate([(0, 1), (1, 2, 3), (0, 1, 2, 3), (0, 3), (0, 1), (1, 2), (0, 1, 3)]):
        values = numbers(6, P.rank, turn)
        if P.rank in team:
            P.transport.all_max(values, team)
            assert np.array_equal(values, agreed(6, team, turn))


@workers(2, 3)
def test_messages_and_sums_under_way_are_not_taken_for_an_agreement() -> None:
    P = gridwise.world()
    others = [rank for rank in P.team if rank != P.rank]
    arriving = [torch.zeros(4, dtype=torch.int64) for _ in others]
    leaving = torch.full((4,), 1000 + P.rank)
    total = torch.ones(1 << 16)
    messages = P.transport.post([(peer, leaving) for peer in others], list(zip(others, arriving, strict=True)))
    values = numbers(4, P.rank)
    P.transport.all_max(values, P.team)
    summing = P.transport.post_sum(total, P.team)
    later = numbers(4, P.rank, 1)
    P.transport.all_max(later, P.team)
    summing.wait()
    messages.wait()
    assert np.array_equal(values, agreed(4, P.team))
    assert np.array_equal(later, agreed(4, P.team, 1))
    assert [x.tolist() for x in arriving] == [[1000 + peer] * 4 for peer in others]
    assert (total == P.size).all()


@workers(2)
def test_a_message_that_is_asked_for_late_waits_behind_agreements() -> None:
    """Sent before an agreement, received after it: tags tell them apart, not their order."""
    P = gridwise.world()
    arriving = torch.zeros(4, dtype=torch.int64)
    sent = P.transport.post([(1, torch.full((4,), 1000))], []) if P.rank == 0 else None
    values = numbers(4, P.rank)
    P.transport.all_max(values, P.team)
    if sent is None:
        P.transport.exchange([], [(0, arriving)])
        assert arriving.tolist() == [1000] * 4
    else:
        sent.wait()
    assert np.array_equal(values, agreed(4, P.team))
