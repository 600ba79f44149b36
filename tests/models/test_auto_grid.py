"""`distribute` on the shape of a grid, and on the grid that the planner ranks first."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.errors import PartitionError
from gridwise.testing import workers


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3, padding=1)
    )


@workers(1, 4)
def test_a_shape_is_the_grid_of_all_workers_wherever_a_partition_is_taken():
    shape = (1, 1, 2, 2) if gridwise.world().size == 4 else (1, 1, 1, 1)
    x = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(1))
    model = gridwise.distribute(_model(), shape)
    assert model.P_x == gridwise.world().grid(*shape)
    y = model(x[gridwise.local_slice(shape, x.shape)])
    torch.testing.assert_close(y, _model()(x)[gridwise.local_slice(shape, (2, 2, 9, 7))])
    block = gridwise.scatter(x if gridwise.world().rank == 0 else None, shape)
    whole = gridwise.gather(block, list(shape))
    assert gridwise.world().rank > 0 or torch.equal(whole, x)
    dataset = gridwise.data.BlockDataset((x, x[:, 0]), (shape, (1, *shape[2:])))
    assert [P.shape for P in dataset.partitions] == [shape, (1, *shape[2:])]
    assert torch.equal(dataset.read([0, 1])[0], block)
    assert torch.equal(next(iter(gridwise.data.CutLoader([x], shape))), block)


@workers(2)
def test_auto_is_the_grid_that_the_planner_ranks_first_on_all_workers():
    model = gridwise.distribute(_model(), "auto", example=(4, 3, 8, 8))
    best = gridwise.plan(_model(), workers=2, input_shape=(4, 3, 8, 8)).best.grid
    assert model.P_x == gridwise.world().grid(*best)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    y = model(x[gridwise.local_slice(model.P_x, x.shape)])
    torch.testing.assert_close(y, _model()(x)[gridwise.local_slice(model.P_y, (4, 2, 8, 8))])


@workers(2)
def test_what_cannot_be_a_grid_is_one_error_that_says_what_to_give():
    def fails(match, *args, **kwargs):
        with pytest.raises(PartitionError, match=match):
            gridwise.distribute(*args, **kwargs)

    fails(r"4 places, but there are 2 workers in this world(.|\n)*start 4: `gridwise run -n 4", _model(), (1, 1, 2, 2))
    fails(r"1 places, but there are 2 workers(.|\n)*create_partition_inclusive\(range\(1\)\)", _model(), (1, 1, 1, 1))
    fails(r"distribute: `P_x` \(=4\) is no partition(.|\n)*product is the number of workers, here 2", _model(), 4)
    fails(r"`P_x` \(='auto'\) needs a model(.|\n)*example=\(4, 3", _model(), "auto")
    fails(r"`P_x` \(='auto'\) needs a model", lambda x: x, "auto", example=(2, 3))
    fails(r"`P_x` \(='auto'\): plan: `workers` \(=2\) cannot be arranged", _model(), "auto", example=(1, 1, 1, 1))
    with pytest.raises(PartitionError, match=r"local_slice: `P_x` \(='auto'\) cannot be chosen here"):
        gridwise.local_slice("auto", (2, 3))


def test_a_grid_without_a_shape_is_that_of_the_environment(monkeypatch):
    with pytest.raises(PartitionError, match=r"no grid was given(.|\n)*gridwise run --grids 1x1x2x2"):
        gridwise.world().grid()
    monkeypatch.setenv("GRIDWISE_GRID", "1x1")
    assert gridwise.world().grid().shape == (1, 1)
    monkeypatch.setenv("GRIDWISE_GRID", "1x1x2, 1x1x1")
    assert gridwise.world().grid().shape == (1, 1, 1), "the first for as many workers as there are"
    monkeypatch.setenv("GRIDWISE_GRID", "1x2,2x2")
    with pytest.raises(PartitionError, match=r"has no grid for the 1 worker that there are(.|\n)*run --grids"):
        gridwise.world().grid()
    for wrong in ("1x", "axb", "1,1", "1x0", "1x1,", "1x1,1"):
        monkeypatch.setenv("GRIDWISE_GRID", wrong)
        with pytest.raises(PartitionError, match="is no grid as 1x1x2x2"):
            gridwise.world().grid()
