"""Who is waited for in vain, and who is not: never one that has done its part, nor one that is slow."""

from __future__ import annotations

import pytest

from gridwise.comm.supervision import finished_workers
from gridwise.comm.supervision.finished_workers import FinishedWorkers, Wait, deserted, team_name
from gridwise.comm.supervision.waiting import Supervised

TEAM = (0, 1, 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(finished_workers.time, "monotonic", lambda: now[0])
    return now


def collective(number: int, seconds: float = 60.0) -> Wait:
    return Wait("AllSumReduce", dict.fromkeys(TEAM, (team_name("", TEAM), number)), seconds)


def test_a_collective_is_waited_for_in_vain_if_one_has_finished_without_it(clock: list[float]) -> None:
    gone = FinishedWorkers()
    assert gone.awaited(collective(4)) is None
    gone.add(1, named({TEAM: 3, (0, 1): 9}))
    clock[0] += 1.0
    assert gone.awaited(collective(4)) == 1
    assert gone.awaited(collective(4), settle=5.0) is None
    clock[0] += 5.0
    assert gone.awaited(collective(4), settle=5.0) == 1


def test_who_did_its_part_and_left_is_not_waited_for(clock: list[float]) -> None:
    """The root of a broadcast, say, while another worker, through which it reaches a third, still computes."""
    gone = FinishedWorkers()
    gone.add(0, named({TEAM: 4}))
    clock[0] += 1e6
    assert gone.awaited(collective(4, seconds=1e6)) is None
    assert gone.awaited(collective(5, seconds=1e6)) == 0


def test_messages_are_waited_for_in_vain_if_one_has_finished_without_them(clock: list[float]) -> None:
    """Whatever the others do who were to send, too: they may wait for this one in turn."""
    gone = FinishedWorkers()
    wait = Wait("HaloExchange", {1: ("1>0", 3), 2: ("2>0", 3)}, 60.0)
    gone.add(1, {"1>0": 3, "0>1": 2})
    clock[0] += 60.0
    assert gone.awaited(wait) is None  # it has sent them
    gone.add(2, {"2>0": 2, "0>2": 9})
    clock[0] += 1.0
    assert gone.awaited(wait) == 2
    assert gone.awaited(wait, settle=5.0) is None


def named(collectives: dict[tuple[int, ...], int]) -> dict[str, int]:
    transport = Supervised(0, 3)
    transport.collectives.update(collectives)
    return transport.counted()


def test_both_ends_of_a_message_count_it_under_one_name() -> None:
    sender, receiver = Supervised(0, 3), Supervised(2, 3)
    for _ in range(5):
        sender.count([(2, None)], [])
        receiver.count([], [(0, None)])
    assert sender.counted() == receiver.counted() == {"0>2": 5}


def test_the_error_names_both() -> None:
    text = "worker 1 of 3 has finished, but worker 0 has waited 60 s for AllSumReduce with workers (0, 1, 2)"
    assert deserted(1, 3, 0, collective(4)).startswith(text)
