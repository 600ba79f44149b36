"""A worker that holds no part of an output gets no rows of its batch: shape (batch, 0), from every layer that moves outputs."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.testing import workers


def grid(*shape, first=0):
    ranks = range(first, first + torch.Size(shape).numel())
    return gridwise.world().create_partition_inclusive(ranks).create_cartesian_topology_partition(shape)


LAYERS = {
    "linear": lambda: (nn.DistributedLinear(grid(1, 2), 6, 5, P_y=grid(1, 1, first=2), P_w=grid(1, 2)), (3, 6), (3, 5)),
    "linear, from one": lambda: (
        nn.DistributedLinear(grid(1, 1), 6, 5, P_y=grid(1, 1), P_w=grid(3, 1)),
        (3, 6),
        (3, 5),
    ),
    "conv": lambda: (
        nn.DistributedConv1d(grid(1, 2, 1), 4, 5, 3, P_y=grid(1, 1, 1, first=2), P_w=grid(1, 2, 1)),
        (3, 4, 8),
        (3, 5, 6),
    ),
    "conv, elsewhere": lambda: (
        nn.DistributedConv1d(grid(1, 2, 1), 4, 5, 3, P_y=grid(1, 1, 1, first=2), P_w=grid(1, 1, 1, first=2)),
        (3, 4, 8),
        (3, 5, 6),
    ),
    "conv, outside": lambda: (nn.DistributedConv1d(grid(1, 1, 2), 4, 5, 3), (3, 4, 8), (3, 5, 6)),
    "pooling, outside": lambda: (nn.DistributedMaxPool1d(grid(1, 1, 2), 2), (3, 4, 8), (3, 4, 4)),
    "a model": lambda: (
        gridwise.distribute(
            torch.nn.Sequential(torch.nn.Conv1d(4, 5, 3), torch.nn.ReLU()), grid(1, 1, 2), example=(3, 4, 8)
        ),
        (3, 4, 8),
        (3, 5, 6),
    ),
}


@workers(3)
@pytest.mark.parametrize("name", LAYERS)
def test_a_worker_without_outputs_gets_an_empty_batch(name):
    torch.manual_seed(0)
    layer, shape, made = LAYERS[name]()
    P_y = layer.P_x if name == "a model" else getattr(layer, "P_y", None) or layer.P_x
    x = torch.ones(shape)[gridwise.local_slice(layer.P_x, shape)] if layer.P_x.active else torch.empty(3, 0)
    y = layer(x.requires_grad_())
    expected = torch.empty(made)[gridwise.local_slice(P_y, made)].shape if P_y.active else (3, 0)
    assert y.shape == expected
    y.view(y.shape[0], -1).sum().backward()
    assert x.grad is None or x.grad.shape == x.shape


@workers(3)
def test_workers_that_bring_nothing_learn_the_batch():
    layer = nn.DistributedLinear(grid(1, 1), 6, 4, P_y=grid(1, 1), P_w=grid(2, 1))
    x = torch.ones(3, 6) if layer.P_x.active else gridwise.zero_volume_tensor()
    assert layer(x).shape == ((3, 4), (3, 0), (0,))[gridwise.world().rank]


@workers(2)
def test_without_a_batch_there_is_none():
    layer = nn.DistributedConv1d(grid(1, 1, 1), 2, 2, 3, P_y=grid(1, 1, 1), P_w=grid(1, 2, 1))
    x = torch.ones(2, 8) if gridwise.world().rank == 0 else gridwise.zero_volume_tensor()
    assert layer(x).shape == ((2, 6), (0,))[gridwise.world().rank]


@workers(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("MaxPool1d", torch.int64),
        ("AvgPool3d", torch.bfloat16),
        ("AdaptiveAvgPool2d", torch.complex64),
        ("AdaptiveMaxPool1d", torch.uint8),
        ("ReflectionPad1d", torch.bool),
        ("ReplicationPad3d", torch.bool),
    ],
)
def test_what_torchs_kernel_cannot_take_is_refused_where_it_would_not_run_too(name, dtype):
    """By a worker with an empty block, and by one whose rows are not padded."""
    dims, pads = int(name[-2]), "Pad" in name
    P, shape = grid(1, 1, 3, *(1,) * (dims - 1)), (1, 1, 6 if pads else 4, *(4,) * (dims - 1))
    x = torch.ones(shape).to(dtype)
    argument = 1 if pads else 2
    with pytest.raises(NotImplementedError, match="not implemented for"):
        getattr(torch.nn, name)(argument)(x)
    with pytest.raises(gridwise.errors.PartitionError, match="not implemented for"):
        getattr(nn, f"Distributed{name}")(P, argument)(x[gridwise.local_slice(P, shape)])
