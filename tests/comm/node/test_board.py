"""The board: rows of all workers of a machine in one step, in any order of arrival, and nothing that was not meant."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from gridwise.comm.node import mailboxes
from gridwise.comm.node.board import Board
from gridwise.comm.node.mailboxes import Mailboxes, NodeError
from gridwise.comm.node.segment import BOARD, Offer
from gridwise.errors import MismatchError

from .crew import crew


@pytest.mark.parametrize("n", [2, 3, 6])
def test_many_rows_with_workers_that_come_early_and_late(n):
    """Among messages and sums of fewer workers; a row that is read too late or too early would be another one's."""

    def body(node, rank):
        wait, team = random.Random(rank), tuple(range(n))
        for k in range(60):
            if wait.random() < 0.2:
                time.sleep(wait.random() * 0.004)
            row = torch.full((1 + k % 7 * 90,), float(100 * k + rank))
            rows = node.all_gather(row, team)
            assert rows[:, 0].tolist() == [100 * k + r for r in range(n)]
            assert (rows == rows[:, :1]).all()
            values = np.array([rank, k], dtype=np.int64)
            node.all_max(values, team)
            assert values.tolist() == [n - 1, k]
            if k % 3 == 0 and n > 2 and rank < 2:
                few = torch.full((3,), rank + 1.0)
                node.all_sum(few, few, (0, 1))
                assert few.tolist() == [3.0] * 3

    crew(n, body)


def test_the_longest_row_and_none_at_all():
    def body(node, rank):
        for count in (BOARD // 4, 0, BOARD // 4 + 1):
            rows = node.all_gather(torch.full((count,), float(rank)), (0, 1))
            assert rows.shape == (2, count)
            assert (rows == torch.tensor([[0.0], [1.0]])).all()

    crew(2, body)


def boards(processes: dict[int, int]) -> tuple[list[Mailboxes], list[Board]]:
    """Two workers that share a segment, both in this process."""
    offer = Offer.make(2)
    offer.close()
    places = {0: 0, 1: 1}
    boxes = [Mailboxes(offer.segment, places, me, processes, False) for me in (0, 1)]
    return boxes, [Board(offer.segment, places, me, boxes[me]) for me in (0, 1)]


HERE = dict.fromkeys((0, 1), os.getpid())


def test_rows_of_different_calls_are_refused_by_both():
    _, (one, two) = boards(HERE)
    errors: list[str] = []

    def other() -> None:
        with pytest.raises(MismatchError) as caught:
            two.all_gather(torch.ones(4), "a gathering")
        errors.append(str(caught.value))

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(
        MismatchError, match=r"worker 1 takes part in a gathering of 16 bytes, where this worker .* 20 bytes"
    ):
        one.all_gather(torch.ones(5), "a gathering")
    thread.join(20)
    assert "worker 0 takes part in a gathering of 20 bytes" in errors[0]


def test_a_worker_that_sends_a_message_instead_is_named(monkeypatch):
    monkeypatch.setattr(mailboxes, "LIFE_SECONDS", 0.01)
    boxes, (one, _) = boards(HERE)
    boxes[1].post([(0, [torch.ones(3)])], [], torch.float32)
    with pytest.raises(
        MismatchError, match="worker 1 sent a message of 12 bytes, where this worker waits for it in an"
    ):
        one.all_gather(torch.ones(5), "an agreement")


def test_a_worker_that_is_ahead_may_send_what_comes_next(monkeypatch):
    monkeypatch.setattr(mailboxes, "LIFE_SECONDS", 0.01)

    def body(node, rank):
        team = (0, 1, 2)
        if rank == 2:
            time.sleep(0.3)
        values = np.array([rank], dtype=np.int64)
        node.all_max(values, team)
        if rank == 1:
            time.sleep(0.2)
        x = torch.zeros(3)
        if rank < 2:
            node.post([(1 - rank, [torch.full((3,), float(rank))])], [(1 - rank, [x])], torch.float32).wait()
        return x.tolist()

    assert crew(3, body) == [[1.0] * 3, [0.0] * 3, [0.0] * 3]


def test_the_dead_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(mailboxes, "LIFE_SECONDS", 0.01)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _, (one, _) = boards({0: os.getpid(), 1: child.pid})
    threading.Timer(0.3, child.communicate).start()
    with pytest.raises(NodeError, match="the process of worker 1 is gone"):
        one.all_gather(torch.ones(3), "an agreement")
    with pytest.raises(NodeError, match="an earlier call did not come to its end"):
        one.all_gather(torch.ones(3), "an agreement")


def test_a_cut_frees_whoever_waits():
    boxes, (one, _) = boards(HERE)
    threading.Timer(0.2, lambda: setattr(boxes[0], "is_cut", True)).start()
    with pytest.raises(NodeError, match="cut"):
        one.all_gather(torch.ones(3), "an agreement")
