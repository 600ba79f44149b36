"""The cores that a worker may count on: all workers of a machine together have no more than there are."""

from __future__ import annotations

import json

import gridwise
from gridwise.comm.launching.cores import cores, described, machine, share
from gridwise.testing import workers


def on(host: str, *mine: int) -> bytes:
    return json.dumps([host, mine]).encode()


def test_the_same_cores_are_shared() -> None:
    assert share([on("a", *range(16))] * 4, 2) == 4
    assert share([on("a", *range(8))] * 3, 0) == 2


def test_bound_workers_have_their_own() -> None:
    everyone = [on("a", *range(4 * i, 4 * i + 4)) for i in range(4)]
    assert [share(everyone, rank) for rank in range(4)] == [4] * 4


def test_other_machines_do_not_count() -> None:
    everyone = [on("a", *range(8)), on("b", *range(8)), on("b", *range(8))]
    assert [share(everyone, rank) for rank in range(3)] == [8, 4, 4]


def test_some_may_run_where_others_are_bound() -> None:
    everyone = [on("a", 0, 1, 2, 3), on("a", 0), on("a", 1)]
    assert [share(everyone, rank) for rank in range(3)] == [3, 1, 1]  # 2 and two halves


def test_more_workers_than_cores_have_one_each() -> None:
    assert share([on("a", 0, 1)] * 5, 4) == 1


def test_this_worker() -> None:
    assert share([described()], 0) == cores() >= 1
    assert machine(described()) == machine(on(machine(described())))


@workers(1, 2, 3)
def test_a_transport_knows_its_share() -> None:
    P = gridwise.world()
    assert P.transport.cores == max(1, cores() // P.size)
