"""Pooling equals torch's on every grid, for every argument; peers' failing cases by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from equality import Case, check, check_all

import gridwise
from gridwise.nn.layers.pooling import DistributedPoolingBase
from gridwise.nn.mixins import PoolingMixin
from gridwise.testing import workers


def pool(layer, P_x, shape, *args, extents=None, **kwargs):
    return Case(layer, P_x, shape, args, kwargs, extents=extents)


ROWS = (1, 1, 2, 1)
PEERS = {
    "dtensor: max k2s2": pool("MaxPool2d", ROWS, (2, 3, 16, 16), 2),
    "dtensor, distconv: max k3s2p1": pool("MaxPool2d", ROWS, (2, 3, 16, 16), 3, 2, 1),
    "dtensor: max k3s1p1": pool("MaxPool2d", ROWS, (2, 3, 17, 17), 3, 1, 1),
    "dtensor: max dilation 2": pool("MaxPool2d", ROWS, (2, 3, 17, 17), 3, 1, 1, 2),
    "dtensor: avg 1-d backward": pool("AvgPool1d", (1, 1, 2), (2, 3, 17), 3, 2, 1),
    "dtensor, distconv: avg k3s2p1": pool("AvgPool2d", ROWS, (2, 3, 16, 16), 3, 2, 1),
    "dtensor: max 3-d backward": pool("MaxPool3d", (1, 1, 2, 1, 1), (1, 2, 7, 6, 6), 3, 2, 1),
    "dtensor: avg 3-d backward": pool("AvgPool3d", (1, 1, 2, 1, 1), (1, 2, 7, 6, 6), 3, 2, 1),
    "shardtensor: overlapping": pool("MaxPool2d", (1, 1, 1, 3), (2, 3, 8, 11), 3, 2),
    "shardtensor: blocks that the stride does not divide": pool("AvgPool2d", (1, 1, 3, 1), (2, 3, 10, 8), 2),
    "distdl: default stride": pool("MaxPool2d", (1, 1, 2, 2), (2, 3, 12, 12), 3),
    "distdl: padding and dilation": pool("MaxPool2d", (1, 1, 2, 2), (2, 3, 13, 12), 3, 2, 1, 2),
}

GRIDS = [
    *(
        pool("AvgPool2d", P_x, (2, 2, 7, 9), 3, 2, 1, ceil_mode=ceil, count_include_pad=count)
        for P_x in ((1, 1, 3, 1), (1, 1, 2, 2))
        for ceil in (False, True)
        for count in (False, True)
    ),
    pool("AvgPool2d", (1, 1, 1, 4), (2, 2, 5, 6), (2, 4), (1, 3), (1, 2), True, False, 3),
    pool("AvgPool1d", (1, 1, 4), (2, 2, 6), 4, 3, 2, True, False),
    pool("AvgPool3d", (1, 1, 1, 2, 2), (2, 2, 4, 5, 6), 3, 2, 1, True, False),
    pool("MaxPool2d", (1, 1, 4, 1), (2, 2, 9, 5), 3, 2, 1, return_indices=True, ceil_mode=True),
    pool("MaxPool2d", (1, 2, 1, 2), (2, 3, 9, 8), (3, 2), (1, 2), 1, (2, 1), True),
    pool("MaxPool1d", (1, 3), (2, 10), 3, 2, 1, 2, True, True),
    pool("MaxPool3d", (2, 1, 1, 1, 2), (3, 1, 5, 4, 7), 2, 1, 1, 1, True),
    pool("MaxPool2d", (1, 1, 3, 1), (2, 2, 8, 5), 2, extents=(None, None, (1, 0, 7), None)),
    pool("MaxPool2d", (1, 1, 4, 1), (2, 2, 5, 5), 4),
    pool("MaxPool2d", (3, 1, 1, 1), (2, 2, 6, 6), 2),
]

BY_PAIRS = [
    pool("MaxPool2d", (1, 1, 2, 2), (2, 2, 9, 11), 2),
    pool("MaxPool2d", (1, 1, 3, 1), (2, 2, 8, 5), 2, extents=(None, None, (1, 0, 7), None)),
    pool("MaxPool2d", (1, 1, 1, 3), (1, 2, 6, 7), 2, ceil_mode=True),
    pool("MaxPool1d", (1, 1, 4), (2, 2, 13), 2),
    pool("MaxPool3d", (1, 1, 2, 1, 2), (1, 2, 5, 6, 7), 2),
]

REFUSED = {
    "padding above half the kernel": pool("MaxPool2d", ROWS, (1, 2, 8, 8), 2, 2, 2),
    "kernel wider than the input": pool("AvgPool2d", ROWS, (1, 2, 2, 8), 3),
    "dilated kernel wider than the input": pool("MaxPool2d", ROWS, (1, 2, 4, 8), 3, 1, 0, 4),
    "divisor of zero": pool("AvgPool2d", ROWS, (1, 2, 4, 8), 2, divisor_override=0),
    "a window without any input": pool("MaxPool2d", ROWS, (1, 2, 7, 1), (2, 3), None, 1, 2, ceil_mode=True),
}


@pytest.mark.parametrize("name", PEERS)
@workers(4, transports=("mpi",))
def test_where_peers_fail(name):
    assert check(PEERS[name]) == "equal"


@workers(1, 2, 3, 4)
def test_equal_to_torch(gridwise_setting):
    assert set(check_all(GRIDS, gridwise_setting[1])) <= {"equal"}


@workers(1, 2, 3, 4, transports=("mpi",))
def test_by_pairs_of_rows(gridwise_setting):
    assert set(check_all(BY_PAIRS, gridwise_setting[1])) <= {"equal"}


@pytest.mark.parametrize("name", REFUSED)
@workers(2, transports=("mpi",))
def test_refused_on_all_workers(name):
    assert check(REFUSED[name]) == "refused"


@workers(2, transports=("mpi",))
def test_minus_infinity_at_seams_and_edges():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    whole = torch.full((1, 1, 6, 4), -torch.inf)
    expected, places = torch.nn.functional.max_pool2d(whole, 3, 2, 1, return_indices=True)
    layer = gridwise.nn.DistributedMaxPool2d(P_x, 3, 2, 1, return_indices=True)
    y, indices = layer(whole[gridwise.local_slice(P_x, whole.shape)])
    mine = gridwise.local_slice(P_x, expected.shape)
    assert torch.equal(y, expected[mine])
    assert torch.equal(indices, places[mine])


@workers(2, transports=("mpi",))
def test_half_precision_averages():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    whole = torch.full((1, 1, 8, 8), 3e4, dtype=torch.float16)
    expected = torch.nn.functional.avg_pool2d(whole, 3, 2, 1, count_include_pad=False)
    layer = gridwise.nn.DistributedAvgPool2d(P_x, 3, 2, 1, count_include_pad=False)
    y = layer(whole[gridwise.local_slice(P_x, whole.shape)])
    torch.testing.assert_close(y, expected[gridwise.local_slice(P_x, expected.shape)])


def test_mixin_counts_padding_and_dilation():
    mixin, window = PoolingMixin(), (np.array([3, 2]), np.array([2, 2]), np.array([1, 0]), np.array([2, 1]))
    index = np.array([4, 5])
    assert mixin._compute_min_input_range(index, *window).tolist() == [7, 10]
    assert mixin._compute_max_input_range(index, *window).tolist() == [11, 11]
    assert issubclass(gridwise.nn.DistributedMaxPool2d, DistributedPoolingBase)
    assert DistributedPoolingBase._compute_min_input_range is PoolingMixin._compute_min_input_range
    assert DistributedPoolingBase._compute_max_input_range is PoolingMixin._compute_max_input_range
