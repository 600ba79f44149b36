"""Padding layers pad the global tensor as torch's do, on every grid; peers' failing cases by name."""

from __future__ import annotations

import pytest
import torch
from equality import Case, check, check_all

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.testing import workers

MODES = ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")


def pad(mode, P_x, shape, *args):
    return Case(f"{mode}{len(shape) - 2}d", P_x, shape, args)


PEERS = {
    "dtensor: reflect": pad("ReflectionPad", (1, 1, 2, 1), (2, 3, 16, 16), 2),
    "dtensor: replicate": pad("ReplicationPad", (1, 1, 2, 1), (2, 3, 16, 16), 2),
    "shardtensor: circular": pad("CircularPad", (1, 1, 2, 1), (2, 3, 16, 16), 2),
}

GRIDS = [
    *(pad(mode, (1, 1, 3, 1), (2, 2, 5, 4), (1, 3, 4, 2)) for mode in MODES),
    *(pad(mode, (1, 1, 2, 2), (2, 2, 3, 3), 2) for mode in MODES),
    *(pad(mode, (1, 1, 4), (2, 2, 3), (2, 1)) for mode in MODES),
    *(pad(mode, (1, 1, 1, 2, 2), (1, 2, 3, 4, 3), (1, 2, 0, 1, 2, 2)) for mode in MODES),
    pad("ZeroPad", (1, 1, 4, 1), (2, 2, 2, 3), (0, 0, 5, 6)),
    pad("ConstantPad", (1, 1, 3, 1), (2, 2, 5, 4), (-1, 2, 3, -2), 2.5),
    pad("ReflectionPad", (1, 1, 2, 1), (2, 2, 5, 4), (-1, 2, 3, -1)),
    pad("ConstantPad", (2, 2, 1), (3, 3, 5), 0, 2.5),
]


@pytest.mark.parametrize("name", PEERS)
@workers(4, transports=("mpi",))
def test_where_peers_fail(name):
    assert check(PEERS[name]) == "equal"


@workers(1, 2, 3, 4)
def test_equal_to_torch(gridwise_setting):
    assert set(check_all(GRIDS, gridwise_setting[1])) <= {"equal"}


@workers(2, transports=("mpi",))
def test_refused_on_all_workers():
    assert check(pad("ReflectionPad", (1, 1, 2, 1), (1, 2, 3, 8), 3)) == "refused"
    assert check(pad("CircularPad", (1, 1, 2, 1), (1, 2, 3, 8), 4)) == "refused"
    assert check(pad("ZeroPad", (1, 1, 2, 1), (1, 2, 3, 8), -4)) == "refused"
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    with pytest.raises(UnsupportedError, match="negative circular padding"):
        gridwise.nn.DistributedCircularPad2d(P_x, (-1, 2, 0, 0))


@workers(1, transports=("mpi",))
def test_no_padding_copies():
    x = torch.ones(1, 1, 3)
    y = gridwise.nn.DistributedZeroPad1d(gridwise.world().create_cartesian_topology_partition([1, 1, 1]), 0)(x)
    assert y.data_ptr() != x.data_ptr()
