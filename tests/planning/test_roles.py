"""Roles: one worker of each is run, and all others do the same."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import programs
import pytest
import torch

import gridwise
from gridwise.grid import Grid
from gridwise.planning.roles import _axes_of, _kinds_along, _nearest, _typical

sys.path.insert(0, str(Path(__file__).parents[2]))

from zoo.classics import CLASSICS


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


def convolutions():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 5, padding=2), torch.nn.MaxPool2d(2), torch.nn.Conv2d(4, 2, 3, 2, 1)
    )


def pooled_to_little():
    """To fewer rows and columns than there are workers along them: the blocks of most are empty."""
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.MaxPool2d(12))


def classifier(rows, columns):
    features = 4 * rows * columns
    head = torch.nn.Flatten(), torch.nn.Linear(features, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), *head)


def perceptron(features):
    return torch.nn.Sequential(torch.nn.Linear(features, 20), torch.nn.ReLU(), torch.nn.Linear(20, 7))


def transformer():
    return torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)


def compared(model, grid, shape, dtype=torch.float32):
    """Plan by roles and by running every worker; whether the first says that it is exact, and how many it has run."""
    few = gridwise.plan(model, grid, shape, dtype=dtype, optimizer=torch.optim.Adam)
    workers = range(few.ledger.size)
    every = gridwise.plan(model, grid, shape, dtype=dtype, optimizer=torch.optim.Adam, workers=workers)
    assert sum(few.weights) == len(every.workers)
    if few.exact:
        for worker in every.workers:
            assert counted(few.worker(worker.rank)) == counted(worker), worker.index
    return few.exact, len(few.workers)


@pytest.mark.parametrize(
    ("model", "grid", "shape"),
    [
        (convolutions(), (1, 1, 6, 3), (1, 3, 48, 24)),
        (convolutions(), (1, 1, 5, 4), (1, 3, 42, 36)),
        (classifier(5, 4), (6, 1, 3, 1), (6, 3, 5, 4)),
        (perceptron(40), (12, 2), (12, 40)),
        (transformer(), (6, 3, 1), (6, 7, 8)),
    ],
    ids=["even", "uneven", "a flatten", "products", "a transformer"],
)
def test_those_that_are_not_run_do_as_those_that_are(model, grid, shape):
    """Also where blocks are not equally long, and halos grow and shrink from worker to worker."""
    exact, run = compared(model, grid, shape)
    assert exact
    assert run < math.prod(grid)


@pytest.mark.parametrize(
    ("model", "grid", "shape"),
    [
        (pooled_to_little(), (1, 1, 9, 4), (1, 3, 72, 24)),
        (classifier(5, 4), (1, 1, 5, 4), (5, 3, 5, 4)),
        (perceptron(41), (5, 4), (13, 41)),
    ],
    ids=["empty blocks", "moved to another axis", "uneven products"],
)
def test_so_they_do_where_roles_cannot_be_seen_on_every_line(model, grid, shape):
    exact, _ = compared(model, grid, shape)
    assert exact


@pytest.mark.soak
@pytest.mark.parametrize("grid", [(1, 1, 5, 4), (2, 1, 3, 3), (1, 3, 6, 1), (1, 1, 18, 1)])
@pytest.mark.parametrize("name", sorted(CLASSICS))
def test_so_they_do_for_the_zoo(name, grid):
    make, shape = CLASSICS[name]
    torch.manual_seed(0)
    model = make()
    dtype = torch.float32
    if any(p.dtype in (torch.float64, torch.complex128) for p in model.parameters()):
        model, dtype = model.double(), torch.float64  # all of it: one of them has a complex weight among float32
    compared(model, grid, shape or (2, 3, 64, 64), dtype)


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

    kinds = _kinds_along(kind, [True] * 1000, 500)
    assert kinds == (0, *[500] * 998, 999)
    assert len(seen) < 40


def test_where_blocks_become_shorter_is_looked_at():
    even = [place != 7 for place in range(20)]
    kinds = _kinds_along(lambda place: place >= 7, even, 10)
    assert kinds == (*[0] * 7, *[10] * 13)


def test_axes_are_found_by_the_workers_that_stand_along_them():
    grid = Grid(tuple(range(20)), (1, 1, 5, 4))
    assert _axes_of(Grid(tuple(range(20)), (5, 4)), grid) == [2, 3]
    assert _axes_of(Grid(tuple(range(20)), (1, 5, 4, 1)), grid) == [None, 2, 3, None]
    across = tuple(4 * i + j for j in range(4) for i in range(5))
    assert _axes_of(Grid(across, (4, 5)), grid) == [3, 2]
    assert _axes_of(Grid(tuple(range(20)), (4, 5)), grid) is None  # as many workers, but in other rows
    assert _axes_of(Grid(tuple(range(20)), (20, 1)), grid) is None
    assert _axes_of(Grid(tuple(range(5)), (5, 1)), grid) is None


def test_typical_places_are_at_the_ends_and_where_blocks_shrink():
    assert _typical(100, 250) == [0, 1, 49, 50, 98, 99]
    assert _nearest([0, 1, 2, 5, 6], 7) == (0, 1, 2, 2, 5, 5, 6)
