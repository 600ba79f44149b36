"""A whole volume on every worker instead of a block: a warning on the first worker, before anything else is said."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError, SameBlocks
from gridwise.testing import workers


def warned(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in seen if each.category is SameBlocks]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@workers(4, transports=("mpi",))
def test_the_whole_on_every_worker_is_noticed() -> None:
    world = gridwise.world()
    x, y = random(4, 2, 8, 8), random(8, 2, 8, 8)
    for grid, axes in (((1, 1, 2, 2), [2, 3]), ((2, 1, 1, 2), [3]), ((4, 1, 1, 1), []), ((1, 2, 2, 1), [1, 2])):
        P = world.create_cartesian_topology_partition(grid)
        model = gridwise.distribute(nn.Sigmoid(), P)
        expected = axes if world.rank == 0 else []
        found = warned(lambda model=model: model(x))
        assert [
            f"along axis {axis} of its grid {grid}. Did you forget gridwise.local_slice?" in text
            for axis, text in zip(axes, found, strict=False)
        ] == [True] * len(expected), found
        assert len(found) == len(expected)
        assert not warned(lambda model=model: model(x)), "once"
        assert len(warned(lambda model=model: model(y))) == len(expected), "again, after the shape changed"
        assert not warned(lambda model=model, P=P: model(y[gridwise.local_slice(P, y.shape)]))
        assert not warned(lambda model=model: model(torch.ones(5, 2, 8, 8)))
    P = world.create_cartesian_topology_partition((1, 1, 2, 2))
    rows = x[:, :, 4 * P.index[2] : 4 * P.index[2] + 4]
    found = warned(lambda: gridwise.distribute(nn.Sigmoid(), P)(rows))
    assert [("axis 3" in text) for text in found] == [True] * (world.rank == 0)
    prepared = gridwise.distribute(nn.Sigmoid(), P, example=(4, 2, 16, 16))
    assert len(warned(lambda: prepared(x))) == 2 * (world.rank == 0)


@workers(2, transports=("mpi",))
def test_it_is_an_error_on_all_workers_if_so_filtered_and_comes_first() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1)), random(2, 1, 4, 4)
    model = gridwise.distribute(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), P)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SameBlocks)
        with pytest.raises(SameBlocks, match="Did you forget"):
            model(x)
        model(x[gridwise.local_slice(P, x.shape)])
    with warnings.catch_warnings(record=True), pytest.raises(PartitionError, match="cannot take a global input"):
        model(random(2, 1, 5, 4))
