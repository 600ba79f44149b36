"""Searching for a grid."""

from __future__ import annotations

import re
from types import SimpleNamespace

import programs
import pytest
import torch

import gridwise
from gridwise.costs.machine import find_machine
from gridwise.errors import PartitionError
from gridwise.planning.one_step import PlannedStep
from gridwise.planning.search import grids_of, search
from gridwise.planning.times import LayerRow, StepTime

SHAPE = (2, 3, 64, 96)


def test_every_grid_is_tried():
    assert set(grids_of(4, (2, 1, 8))) == {(1, 1, 4), (2, 1, 2)}
    assert list(grids_of(7, (2, 3))) == []


@pytest.fixture(scope="module")
def ranking():
    return gridwise.plan(programs.UNet(), workers=4, input_shape=SHAPE, machine="epyc-7763-node", memory="1GiB")


def test_grids_are_in_the_order_of_their_times(ranking):
    seconds = [row.seconds for row in ranking.rows]
    assert seconds == sorted(seconds)
    assert len(seconds) == len(set(grids_of(4, SHAPE)))
    assert ranking.best is ranking.rows[0].plan
    assert len(ranking.best.workers) == 4
    assert "is best" in ranking.advice[0]
    assert "fits" in str(ranking)


def test_the_best_is_the_plan_of_that_grid(ranking):
    alone = gridwise.plan(programs.UNet(), ranking.best.grid, SHAPE, machine="epyc-7763-node")
    assert alone.workers == ranking.best.workers
    assert alone.time.seconds == pytest.approx(ranking.best.time.seconds)


def searched(seconds, memory, limit):
    """A search among plans that need `seconds` and `memory`, both by the first extent and by whether all roles are run."""
    machine = find_machine("epyc-7763-node")

    def planned(task, grid, workers):
        whole = workers is None
        time = StepTime(machine, (LayerRow("a", "forward", seconds(grid[0], whole)),))
        worker = SimpleNamespace(memory=memory(grid[0], whole), sent=0, messages=0)
        return SimpleNamespace(grid=grid, time=time, workers=[worker], whole=whole)

    return search(PlannedStep(torch.nn.Tanh(), (64, 64), machine), 16, limit, planned)


def test_the_best_is_planned_in_full_however_often_estimates_were_wrong():
    ranking = searched(lambda extent, whole: extent + 100 * whole, lambda extent, whole: 1, 1)
    assert ranking.best.whole
    assert ranking.best.grid == (1, 16)
    assert [row.seconds for row in ranking.rows] == [101, 102, 104, 108, 116]


def test_remedies_are_planned_in_full_too():
    ranking = searched(lambda extent, whole: extent, lambda extent, whole: 30 if whole else 10, 20)
    assert not any(row.fits for row in ranking.rows)
    assert not any(": fits." in line for line in ranking.advice), ranking.advice
    assert ranking.advice[-1].startswith("Not on 128 workers either")


def test_what_would_fit_is_tried_and_not_guessed():
    shape, options = (1, 3, 256, 256), {"machine": "epyc-7763-node"}
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.Tanh()) for _ in range(4))
    )
    needs = max(w.memory for w in gridwise.plan(model, workers=2, input_shape=shape, **options).best.workers)
    tight = gridwise.plan(model, workers=2, input_shape=shape, memory=needs * 2 // 3, **options)
    assert not any(row.fits for row in tight.rows)
    with pytest.raises(PartitionError, match="no grid fits"):
        _ = tight.best
    text = " ".join(tight.advice)
    assert text.startswith("No grid fits into")
    assert "bfloat16" in text
    (least, unit), (again, same_unit) = re.findall(r"(?:least,|\(checkpointing\), it needs) ([\d.]+) (\w+)", text)
    assert (float(again) < float(least), unit) == (True, same_unit), text
    assert text.count(": fits.") >= 2
    assert "On 4 workers" in text


def test_more_workers_than_places_is_an_error():
    with pytest.raises(PartitionError, match="cannot be arranged"):
        gridwise.plan(torch.nn.ReLU(), workers=7, input_shape=(2, 4))


def test_memory_is_for_a_search():
    with pytest.raises(PartitionError, match="`memory` is for a search"):
        gridwise.plan(torch.nn.ReLU(), (1, 2), (4, 4), memory="1GiB")


def test_the_least_number_of_workers_is_found():
    model, shape = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Tanh()), (1, 3, 96, 96)
    options = {"machine": "epyc-7763-node"}

    def least(count):
        rows = gridwise.plan(model, workers=count, input_shape=shape, **options).rows
        return min(row.memory for row in rows if row.plan is not None)

    limit = least(3)
    assert least(2) > limit
    found = gridwise.plan(model, input_shape=shape, memory=limit, **options)
    assert (found.workers, found.rows[0].fits) == (3, True)
    assert found.advice[0] == "3 workers are the least that were found to have enough memory."
    assert gridwise.plan(model, input_shape=shape, memory="1GiB", **options).workers == 1
    hopeless = gridwise.plan(model, input_shape=(1, 3, 2, 2), memory=100, **options)
    assert hopeless.advice[0].startswith("No grid fits")


def test_a_ranking_says_why_one_grid_beats_another():
    model = torch.nn.Sequential(*(torch.nn.Conv3d(1, 1, 3, padding=1) for _ in range(3)))
    ranking = gridwise.plan(model, workers=8, input_shape=(1, 1, 32, 32, 32), machine="nvidia-a100")
    text = " ".join(ranking.advice)
    frugal = min(ranking.rows, key=lambda row: row.sent)
    assert frugal is not ranking.rows[0]
    assert "sends least, but" in text
    assert f"in {ranking.rows[0].messages})" in text
