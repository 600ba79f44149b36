"""Transposed convolutions equal torch's on every grid; peers' failing cases by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from equality import Case, check, check_all

import gridwise
from gridwise.errors import PartitionError
from gridwise.operators.windows.transposed_convolution import OutputCrop, cut_out
from gridwise.testing import workers


def conv(P_x, shape, *args, layer="ConvTranspose2d", extents=None, **kwargs):
    return Case(layer, P_x, shape, args, kwargs, extents=extents)


PEERS = {
    "dtensor: k2s2": conv((1, 1, 2, 1), (2, 4, 8, 8), 4, 3, 2, 2),
    "dtensor, distconv: k3p1": conv((1, 1, 2, 1), (2, 4, 8, 8), 4, 3, 3, padding=1),
    "shardtensor: odd kernel, stride 2": conv((1, 1, 2, 1), (2, 4, 8, 8), 4, 3, 3, 2, 1, 1),
    "shardtensor: k4s2p1": conv((1, 1, 2, 2), (2, 4, 7, 9), 4, 3, 4, 2, 1),
}

GRIDS = [
    conv((1, 1, 3, 1), (2, 2, 5, 4), 2, 3, 5, 3, 2, 2),
    conv((1, 1, 4, 1), (2, 2, 3, 4), 2, 3, 1, 3, output_padding=1),
    conv((1, 1, 1, 3), (2, 2, 3, 7), 2, 3, (2, 3), (1, 2), dilation=(1, 3), padding=(0, 2)),
    conv((1, 3, 1, 1), (2, 4, 3, 4), 4, 5, 3, 2),
    conv((1, 2, 1, 1), (2, 4, 3, 4), 4, 6, 3, 2, groups=2),
    conv((1, 4, 1, 1), (2, 6, 3, 4), 6, 6, 3, 2, groups=3),
    conv((1, 3, 1, 1), (2, 4, 3, 4), 4, 8, 3, 2, groups=4, bias=False),
    conv((2, 1, 2, 1), (3, 2, 3, 4), 2, 2, 3, 2, 1, 1),
    conv((1, 1, 3, 1), (2, 2, 6, 4), 2, 2, 3, 2, 1, 1, extents=(None, None, (0, 5, 1), None)),
    conv((1, 2), (3, 5), 3, 2, 4, 3, 2, 1, layer="ConvTranspose1d"),
    conv((1, 1, 2, 1, 2), (1, 2, 3, 2, 3), 2, 3, 3, 2, 1, 1, layer="ConvTranspose3d"),
]

REFUSED = {
    "output padding as large as stride and dilation": conv((1, 1, 2, 1), (1, 2, 4, 4), 2, 2, 3, 2, 1, 2),
    "another mode than zeros": conv((1, 1, 2, 1), (1, 2, 4, 4), 2, 2, 3, padding_mode="reflect"),
    "nothing left": conv((1, 1, 2, 1), (1, 2, 4, 4), 2, 2, 1, 1, 2),
    "groups that do not divide": conv((1, 1, 2, 1), (1, 3, 4, 4), 3, 3, 3, groups=2),
}


@pytest.mark.parametrize("name", PEERS)
@workers(4, transports=("mpi",))
def test_where_peers_fail(name):
    assert check(PEERS[name]) == "equal"


@workers(1, 2, 3, 4)
def test_equal_to_torch(gridwise_setting):
    assert set(check_all(GRIDS, gridwise_setting[1])) <= {"equal"}


@pytest.mark.parametrize("name", REFUSED)
@workers(2, transports=("mpi",))
def test_refused_on_all_workers(name):
    assert check(REFUSED[name]) == "refused"


def test_torch_never_drops_rows_that_are_wanted():
    for stride, dilation, before, after in ((2, 2, 4, -1), (1, 1, 3, 0), (3, 1, -2, 5), (2, 1, 1, 1), (1, 1, 0, 0)):
        cut = cut_out((before, after), stride, dilation)
        assert cut.padding - cut.output_padding <= max(after, 0)
        assert cut.padding + cut.crop[0] == before
        assert cut.padding - cut.output_padding + cut.crop[1] == after
        assert 0 <= cut.output_padding < max(stride, dilation)
    assert cut_out((1, 0), 2, 1) == OutputCrop(1, 1, (0, 0))


@workers(1, 2, 4)
def test_output_size_is_that_of_the_global_output(gridwise_setting):
    workers = gridwise_setting[1]
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, workers, 1))
    torch.manual_seed(0)
    sequential = torch.nn.ConvTranspose2d(2, 3, 3, stride=3, padding=1, dilation=2, dtype=torch.float64)
    layer = gridwise.nn.DistributedConvTranspose2d(P_x, 2, 3, 3, stride=3, padding=1, dilation=2, dtype=torch.float64)
    layer.load_state_dict(sequential.state_dict())
    for shape in ((2, 2, 5, 3), (2, 5, 3)):  # with a batch and without
        x = torch.randn(shape, dtype=torch.float64)
        mine = gridwise.local_slice(P_x, (1,) * (4 - len(shape)) + shape)[4 - len(shape) :]
        for size in (None, (15, 9), (17, 10), [16, 11], torch.Size((*shape[:-3], 3, 16, 11)), (15, 9), None):
            whole, part = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
            expected = sequential(whole, size)
            actual = layer(part, size) if size == (17, 10) else layer(part, output_size=size)
            lacking = 4 - len(shape)
            own = gridwise.local_slice(P_x, (1,) * lacking + tuple(expected.shape))[lacking:]
            torch.testing.assert_close(actual, expected[own])
            for network, y in ((sequential, expected), (layer, actual)):
                network.zero_grad()
                y.square().sum().backward()
            torch.testing.assert_close(part.grad, whole.grad[mine])
            torch.testing.assert_close(layer.weight.grad, sequential.weight.grad)


@workers(2)
def test_an_output_size_is_agreed_on():
    rank = gridwise.world().rank
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2))
    layer = gridwise.nn.DistributedConvTranspose1d(P_x, 1, 1, 3, stride=2, padding=1)
    x = torch.ones(1, 1, 3)
    with pytest.raises(
        PartitionError, match=r"different `output_size`[\s\S]*output_size=\(11,\)[\s\S]*output_size=\(12,\)"
    ):
        layer(x, output_size=(11 + rank,))
    with pytest.raises(PartitionError, match="different `output_size`"):
        layer(x, output_size=None if rank else (11,))
    with pytest.raises(PartitionError, match="requested an output size of"):
        layer(x, output_size=(13,))
    with pytest.raises(PartitionError, match="output_size must have 1"):
        layer(x, output_size=(11, 11))
    with pytest.raises(PartitionError, match="whole numbers"):
        layer(x, output_size=(11.5,) if rank else (11,))
    for size in ((12,), np.array([12]), [np.int64(12)]):
        assert gridwise.gather(layer(x, output_size=size), P_x).numel() == (0 if rank else 12)
    plans = []
    layer._plan = lambda *args: (plans.append(args), type(layer)._plan(layer, *args))
    for size in ((12,), (12,), (11,), (11,), None):
        layer(x, output_size=size)
    assert len(plans) == 2
