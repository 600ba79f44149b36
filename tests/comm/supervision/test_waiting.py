"""Threads of a worker: they may take turns, but not talk at once."""

from __future__ import annotations

import threading
import time

import torch

import gridwise
from gridwise.comm.launching import find
from gridwise.errors import TransportError
from gridwise.testing import workers


@workers(2)
def test_a_thread_that_calls_while_another_waits_is_refused() -> None:
    transport = find.current()
    caught: list[Exception] = []

    def second() -> None:
        while transport.waiting is None:
            time.sleep(0.001)
        try:
            transport.all_sum(torch.ones(1), transport.everyone, "AllSumReduce")
        except TransportError as error:
            caught.append(error)

    thread = threading.Thread(target=second, name="second")
    if transport.rank == 0:
        thread.start()
    else:
        time.sleep(0.3)  # 0 waits meanwhile
    total = transport.all_sum(torch.ones(1), transport.everyone, "HaloExchange")
    if transport.rank == 0:
        thread.join()
        (error,) = caught
        assert (
            "AllSumReduce was called in thread 'second' of worker 0 of 2 while thread 'MainThread' waits for Halo"
            in str(error)
        )
        assert "fix: let one thread of each worker call layers" in str(error)
    assert total.item() == 2.0
    assert transport.waiting is None


@workers(2)
def test_a_thread_that_moves_while_another_waits_is_refused() -> None:
    transport = find.current()
    other = 1 - transport.rank
    mine, theirs = torch.zeros(4), torch.empty(4)
    caught: list[Exception] = []

    def move() -> None:
        transport.move([(other, [mine])], [(other, [theirs])], torch.float32, "HaloExchange").wait()

    def second() -> None:
        while transport.waiting is None:
            time.sleep(0.001)
        try:
            move()
        except TransportError as error:
            caught.append(error)

    thread = threading.Thread(target=second)
    if transport.rank == 0:
        thread.start()
    else:
        time.sleep(0.3)
    move()
    if transport.rank == 0:
        thread.join()
    assert len(caught) == (transport.rank == 0)


@workers(2)
def test_threads_may_take_turns() -> None:
    transport = find.current()
    totals: list[float] = []

    def one() -> None:
        totals.append(transport.all_sum(torch.ones(1), transport.everyone).item())

    for _ in range(3):
        thread = threading.Thread(target=one)
        thread.start()
        thread.join()
        one()
    assert totals == [2.0] * 6


def test_threads_of_a_single_worker_need_not_take_turns() -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1))
    layer = gridwise.nn.AllSumReduce(P, axes_reduce=(0,))
    with find.current().waiting_for("a sum", (0,)):
        thread = threading.Thread(target=lambda: seen.append(layer(torch.ones(2, 2))))
        seen: list[torch.Tensor] = []
        thread.start()
        thread.join()
    assert seen[0].shape == (2, 2)
