"""Roles: one worker of each is run, and all others do the same."""

from __future__ import annotations

import programs
import pytest
import torch

import gridwise
from gridwise.planning.roles import _kinds_along, _nearest, _typical


def counted(worker):
    return (
        worker.messages,
        worker.sent,
        worker.received,
        worker.fetched,
        worker.memory,
        worker.activations,
        worker.sums,
    )


@pytest.mark.parametrize(
    ("grid", "shape"),
    [pytest.param((1, 1, 6, 3), (1, 3, 48, 24), marks=pytest.mark.soak), ((1, 1, 5, 4), (1, 3, 42, 36))],
)
def test_those_that_are_not_run_do_as_those_that_are(grid, shape):
    """Also where blocks are not equally long, and halos grow and shrink from worker to worker."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 5, padding=2), torch.nn.MaxPool2d(2), torch.nn.Conv2d(4, 2, 3, 2, 1)
    )
    few = gridwise.plan(model, grid, shape)
    every = gridwise.plan(model, grid, shape, workers=range(few.ledger.size))
    assert few.exact
    assert len(few.workers) < len(every.workers)
    assert sum(few.weights) == len(every.workers)
    for worker in every.workers:
        assert counted(few.worker(worker.rank)) == counted(worker), worker.index


def test_thousands_of_workers_have_few_roles():
    planned = gridwise.plan(torch.nn.Conv2d(1, 4, 3, padding=1), (1, 1, 64, 64), (1, 1, 640, 640))
    assert planned.ledger.size == 4096
    assert len(planned.workers) == 9
    assert planned.exact
    assert (planned.worker(0).messages, planned.worker(1).messages, planned.worker(65 * 20).messages) == (3, 5, 8)
    text = " ".join(str(planned).split())
    assert "9 of 4096 workers" in text
    assert "about" not in text


def test_tensors_on_other_grids_make_an_estimate():
    planned = gridwise.plan(programs.Net(), (1, 1, 3, 6), programs.INPUT)  # a flatten moves all to other grids
    assert not planned.exact
    assert "mean, about" in " ".join(str(planned).split())
    assert sum(planned.weights) == 18


def test_few_places_are_looked_at():
    seen = []

    def kind(place):
        seen.append(place)
        return "first" if place == 0 else "last" if place == 999 else "inner"

    kinds = _kinds_along(1000, kind, [True] * 1000)
    assert kinds == (0, *[500] * 998, 999)
    assert len(seen) < 40


def test_where_blocks_become_shorter_is_looked_at():
    even = [place != 7 for place in range(20)]
    kinds = _kinds_along(20, lambda place: place >= 7, even)
    assert kinds == (*[0] * 7, *[10] * 13)


def test_typical_places_are_at_the_ends_and_where_blocks_shrink():
    assert _typical(100, 250) == [0, 1, 49, 50, 98, 99]
    assert _nearest([0, 1, 2, 5, 6], 7) == (0, 1, 2, 2, 5, 5, 6)
