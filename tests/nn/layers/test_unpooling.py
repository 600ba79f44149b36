"""Unpooling equals torch's, on any grid, of what pooling with the same arguments returns."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import gridwise
from gridwise.errors import PartitionError
from gridwise.grid import Layout
from gridwise.testing import check_gradients, workers

nn = gridwise.nn


def run_case(
    grid: tuple[int, ...], shape: tuple[int, ...], window: tuple, sized: bool, seed: int, cuts: Any = None
) -> None:
    """Pool with torch, unpool with both, from any blocks; forward and gradient."""
    dims = len(window[0])
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    pool = getattr(torch.nn, f"MaxPool{dims}d")(*window, return_indices=True)
    sequential = getattr(torch.nn, f"MaxUnpool{dims}d")(*window)
    layer = getattr(nn, f"DistributedMaxUnpool{dims}d")(P_x, *window)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values, indices = pool(x)
    size = x.shape[-dims:] if sized else None
    lacking = len(grid) - x.dim()
    layout = (
        Layout(P_x.geometry, cuts(values.shape))
        if cuts
        else Layout.balanced(P_x.geometry, (1,) * lacking + tuple(values.shape))
    )
    block = layout.block(gridwise.world().rank).slices[lacking:]
    whole, part = values.clone().requires_grad_(), values[block].clone().requires_grad_()
    try:
        expected = sequential(whole.cpu(), indices.cpu(), size).to(whole.device)  # bad indices would end a CUDA context
    except (ValueError, RuntimeError):
        with pytest.raises(PartitionError):
            layer(part, indices[block], size)
        return
    actual = layer(part, indices[block], output_size=size)
    own = gridwise.local_slice(P_x, (1,) * lacking + tuple(expected.shape))[lacking:]
    torch.testing.assert_close(actual, expected[own])
    dy = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    expected.backward(dy)
    actual.backward(dy[own])
    torch.testing.assert_close(part.grad, whole.grad[block])


@workers(1, 2, 3, 4)
def test_equal_to_torch(gridwise_setting: tuple[str, int]) -> None:
    p = gridwise_setting[1]
    for sized in (False, True):
        for window in (((2, 2),), ((3, 2), (3, 2), (1, 0)), ((3, 3), (2, 2), (1, 1))):
            for grid in ((1, 1, p, 1), (1, 1, 1, p), (p, 1, 1, 1), (1, p, 1, 1)):
                run_case(grid, (2, 3, 9, 8), window, sized, p)
    run_case((1, 1, p), (2, 3, 11), ((3,),), True, 0)
    run_case((1, p), (3, 11), ((3,),), True, 0)
    run_case((1, 1, p), (3, 11), ((3,),), False, 0)
    run_case((1, 1, 1, p, 1), (1, 2, 4, 5, 6), ((2, 2, 2),), True, 0)


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
def test_many_random_configurations() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        p, dims = gridwise.world().size, rng.choice((1, 2))
        grid = [1] * (dims + 2)
        grid[rng.randrange(dims + 2)] = p
        kernel = tuple(rng.randint(1, 3) for _ in range(dims))
        window = (kernel, tuple(rng.randint(1, 3) for _ in kernel), tuple(rng.randint(0, k // 2) for k in kernel))
        shape = (rng.randint(1, 3), rng.randint(1, 3), *(rng.randint(3, 10) for _ in kernel))

        def cuts(shape: tuple[int, ...], rng: random.Random = rng, grid: list[int] = grid) -> Any:
            return tuple(
                (0, *sorted(rng.randint(0, n) for _ in range(q - 1)), n) for n, q in zip(shape, grid, strict=True)
            )

        run_case(tuple(grid), shape, window, rng.random() < 0.7, seed, cuts)


@workers(2)
def test_agreement_and_second_order() -> None:
    rank = gridwise.world().rank
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2])
    pool, unpool = nn.DistributedMaxPool1d(P_x, 2, return_indices=True), nn.DistributedMaxUnpool1d(P_x, 2)
    x = torch.randn(1, 1, 4, dtype=torch.float64)
    values, indices = pool(x)
    check_gradients(lambda v: unpool(v, indices) ** 2, values.detach())
    with pytest.raises(PartitionError, match="outside of the window"):
        unpool(values, indices + (5 if rank else 0))
    unpool(values, indices)
    with pytest.raises(PartitionError, match="outside of the window"):
        unpool(values, indices - (0 if rank else 3))
    with pytest.raises(PartitionError, match="different `output_size`"):
        unpool(values, indices, (8 + rank,))
    with pytest.raises(PartitionError, match="worker 1: needs whole numbers as `output_size`, got 4"):
        unpool(values, indices, 4 if rank else (4,))
    torch.testing.assert_close(unpool(values, indices, np.array([8])), unpool.forward(values, indices))
    with pytest.raises(PartitionError, match="invalid output_size"):
        unpool(values, indices, (80,))
    with pytest.raises(PartitionError, match="int64"):
        unpool(values, indices.float())
    with pytest.raises(PartitionError, match="of one shape"):
        unpool(values, indices[..., :1])
