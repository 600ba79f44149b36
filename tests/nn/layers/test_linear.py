"""Affine maps equal torch's, with features in, out or both cut, and any leading dims."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import gridwise
from gridwise.grid import Layout
from gridwise.testing import check_equal_to_sequential, check_gradients, workers

nn = gridwise.nn


def grids(workers: int, dim: int) -> list[tuple[int, ...]]:
    choices = [p for p in range(1, workers + 1) if workers % p == 0]
    return [shape for shape in itertools.product(choices, repeat=dim) if torch.Size(shape).numel() == workers]


def on_grid(shape: Any, first: int = 0) -> gridwise.CartesianPartition:
    ranks = range(first, first + torch.Size(shape).numel())
    return gridwise.world().create_partition_inclusive(ranks).create_cartesian_topology_partition(shape)


def compare(
    shape: tuple[int, ...], P_x: Any, out: int = 5, bias: bool = True, cuts: Any = None, **partitions: Any
) -> None:
    torch.manual_seed(1)
    sequential = torch.nn.Linear(shape[-1], out, bias, dtype=torch.float64)
    torch.manual_seed(1)
    layer = nn.DistributedLinear(P_x, shape[-1], out, bias, dtype=torch.float64, **partitions)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    layout = Layout(P_x.geometry, cuts) if cuts else None
    check_equal_to_sequential(layer, sequential, x, P_x, partitions.get("P_y"), layout)


@workers(1, 2, 3, 4)
def test_on_one_partition() -> None:
    for shape in ((7,), (4, 7), (3, 4, 7)):
        for grid in grids(gridwise.world().size, len(shape)):
            compare(shape, on_grid(grid), bias=grid[0] == 1)


@workers(4)
def test_features_in_out_and_both() -> None:
    for p_in, p_out in ((1, 4), (4, 1), (2, 2), (1, 2), (2, 1)):
        first = 4 - p_in * p_out
        for bias in (True, False):
            P_x, P_y, P_w = on_grid((1, p_in)), on_grid((1, p_out), 4 - p_out), on_grid((p_out, p_in), first)
            compare((3, 7), P_x, bias=bias, P_y=P_y, P_w=P_w)
    P_x, P_y, P_w = on_grid((2, 1, 2)), on_grid((1, 2, 1)), on_grid((2, 2))
    compare((3, 2, 7), P_x, P_y=P_y, P_w=P_w)
    compare((3, 2, 7), P_x, cuts=((0, 3, 3), (0, 2), (0, 1, 7)), P_y=P_y, P_w=P_w)
    compare((3, 2, 7), P_x, out=1, cuts=((0, 3, 3), (0, 2), (0, 1, 7)))


@workers(2)
def test_gradients_weights_and_refusals() -> None:
    P_x = on_grid((1, 2))
    layer = nn.DistributedLinear(P_x, 4, 3, dtype=torch.float64)
    check_gradients(lambda x: layer(x) ** 2, torch.randn(2, 2, dtype=torch.float64))
    both = nn.DistributedLinear(P_x, 4, 3, dtype=torch.float64, P_y=P_x, P_w=on_grid((1, 2)))
    check_gradients(lambda x: both(x) ** 2, torch.randn(2, 2, dtype=torch.float64))
    layer.load_state_dict(torch.nn.Linear(4, 3, dtype=torch.float64).state_dict())
    with pytest.raises(gridwise.errors.PartitionError, match="needs 4 features"):
        layer(torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(gridwise.errors.PartitionError, match="both `P_y` and `P_w`"):
        nn.DistributedLinear(P_x, 4, 3, P_y=P_x)
    with pytest.raises(gridwise.errors.PartitionError, match="of shape \\(p_out, p_in\\)"):
        nn.DistributedLinear(P_x, 4, 3, P_y=P_x, P_w=on_grid((2,)))
