"""Convolutions equal torch's on every grid, forward and backward; the cases in which peers fail, by name."""

from __future__ import annotations

import copy

import pytest
import torch
from equality import Case, check, check_all

import gridwise
from gridwise.errors import PartitionError
from gridwise.testing import check_gradients, workers

MODES = ("zeros", "reflect", "replicate", "circular")


def conv(P_x, shape, *args, layer="Conv2d", **kwargs):
    known = {name: kwargs.pop(name) for name in ("P_w", "extents", "channels_last") if name in kwargs}
    return Case(layer, P_x, shape, args, kwargs, **known)


PEERS = {
    "dtensor: k3p1 by rows": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding=1),
    "dtensor: k5p2 by columns": conv((1, 1, 1, 3), (2, 4, 18, 18), 4, 4, 5, padding=2),
    "dtensor: uneven 17 over 2": conv((1, 1, 2, 1), (2, 4, 17, 17), 4, 4, 3, padding=1),
    "dtensor: uneven 17 over 3 columns": conv((1, 1, 1, 3), (2, 4, 17, 17), 4, 4, 5, padding=2),
    "dtensor: uneven 18 over 4": conv((1, 1, 4, 1), (2, 4, 18, 18), 4, 4, 5, padding=2),
    "dtensor: conv1d k3p1": conv((1, 1, 2), (2, 4, 16), 4, 4, 3, padding=1, layer="Conv1d"),
    "dtensor: conv1d k5p2": conv((1, 1, 3), (2, 4, 17), 4, 4, 5, padding=2, layer="Conv1d"),
    "dtensor: no padding": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3),
    "dtensor: conv3d k3p1": conv((1, 1, 2, 1, 1), (1, 2, 8, 6, 6), 2, 3, 3, padding=1, layer="Conv3d"),
    "dtensor: conv3d k3p1s2": conv((1, 1, 1, 2, 1), (1, 2, 8, 6, 6), 2, 3, 3, 2, 1, layer="Conv3d"),
    "dtensor: conv3d k3p0": conv((1, 1, 1, 1, 2), (1, 2, 8, 6, 6), 2, 3, 3, layer="Conv3d"),
    "dtensor: k2s2, not overlapping": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 2, 2),
    "dtensor: k2s2, 18 over 4": conv((1, 1, 4, 1), (2, 4, 18, 16), 4, 4, 2, 2),
    "dtensor: k1": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 1),
    "dtensor: k3p1s2": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, 2, 1),
    "dtensor, distconv: k4p1s2": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 4, 2, 1),
    "dtensor, distconv: dilation 2": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding=2, dilation=2),
    "dtensor, distconv: halo wider than the block": conv((1, 1, 1, 4), (2, 4, 8, 4), 4, 4, 7, padding=3),
    "dtensor: rectangular": conv((1, 1, 2, 2), (2, 4, 16, 16), 4, 4, (5, 3), padding=(2, 1)),
    "dtensor: groups": conv((1, 1, 2, 1), (2, 6, 16, 16), 6, 6, 3, padding=1, groups=3),
    "dtensor: same": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding="same"),
    "dtensor: no bias": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding=1, bias=False),
    "dtensor: k5p1": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 5, padding=1),
    "dtensor: k3p2": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding=2),
    "dtensor: batch and columns": conv((2, 1, 1, 2), (4, 4, 8, 8), 4, 4, 3, padding=1),
    "dtensor: rows and columns": conv((1, 1, 2, 2), (2, 4, 17, 17), 4, 4, 3, padding=1),
    "dtensor: input channels cut": conv((1, 2, 1, 1), (2, 4, 8, 8), 4, 4, 3, padding=1),
    "dtensor: output channels cut": conv((1, 1, 1, 1), (2, 4, 8, 8), 4, 4, 3, padding=1, P_w=(2, 1, 1, 1)),
    "dtensor: batch": conv((2, 1, 1, 1), (4, 4, 8, 8), 4, 4, 3, padding=1),
    "shardtensor: even kernel": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 4, padding=2),
    "shardtensor: circular": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding=1, padding_mode="circular"),
    "distdl: reflect": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding=1, padding_mode="reflect"),
    "distdl: replicate": conv((1, 1, 2, 1), (2, 4, 16, 16), 4, 4, 3, padding=1, padding_mode="replicate"),
    "distdl: k1 stride 4 without halo": conv((1, 1, 2, 1), (2, 4, 8, 8), 4, 4, 1, 4),
    "distdl: more workers than rows": conv((1, 1, 2, 1), (2, 4, 1, 8), 4, 4, 3, padding=1),
    "distdl: groups with channels cut": conv((1, 2, 1, 1), (2, 4, 8, 8), 4, 6, 3, groups=2, P_w=(2, 2, 1, 1)),
}

GRIDS = [
    *(conv((1, 1, 3, 1), (2, 3, 7, 8), 3, 4, 5, padding=2, padding_mode=mode) for mode in MODES),
    *(conv((1, 1, 2, 2), (2, 3, 4, 3), 3, 4, 5, padding=2, padding_mode=mode) for mode in MODES),
    *(conv((1, 1, 1, 4), (2, 3, 4, 6), 3, 4, (4, 2), padding="same", padding_mode=mode) for mode in MODES),
    conv((1, 3, 1, 1), (2, 4, 6, 6), 4, 6, 3, padding=2, groups=2),
    conv((1, 3, 1, 1), (2, 8, 6, 6), 8, 12, 3, padding=2, groups=4),
    conv((1, 4, 1, 1), (2, 6, 6, 6), 6, 6, 3, groups=6),
    conv((1, 4, 1, 1), (2, 3, 6, 6), 3, 2, 3),
    conv((2, 2, 1, 1), (3, 4, 6, 6), 4, 5, 3, padding=1),
    conv((4, 1, 1, 1), (3, 4, 6, 6), 4, 5, 3, padding=1),
    conv((1, 1, 4, 1), (2, 2, 5, 5), 2, 2, 4),
    conv((1, 1, 3, 1), (2, 2, 9, 5), 2, 2, 3, padding=1, extents=(None, None, (0, 7, 2), None)),
    conv((1, 1, 2, 2), (2, 2, 9, 8), 2, 2, 3, padding=1, channels_last=True),
    conv((1, 2, 1), (3, 8, 8), 3, 4, 3, padding=1),
    conv((1, 1, 2, 1), (3, 8, 8), 3, 4, 3, padding=1),
    conv((1, 2, 2, 1), (2, 4, 7, 8), 4, 6, 3, 2, 1, P_w=(1, 2, 2, 1)),
    conv((1, 2, 1, 1), (2, 4, 7, 8), 4, 6, 3, padding=1, P_w=(2, 2, 1, 1)),
    conv((1, 1, 2, 1), (2, 4, 7, 8), 4, 6, 3, padding=1, padding_mode="circular", P_w=(2, 1, 1, 2)),
    conv((1, 1, 1, 1), (2, 6, 7, 8), 6, 6, 3, padding=1, groups=3, P_w=(2, 2, 1, 1)),
    conv((1, 2, 1, 1), (2, 3, 7, 8), 3, 1, 3, P_w=(1, 4, 1, 1)),
    conv((1, 4), (2, 9), 2, 3, 4, 2, 1, layer="Conv1d"),
    conv((1, 1, 2, 2, 1), (2, 2, 5, 5, 4), 2, 3, 3, padding=1, layer="Conv3d"),
    conv((1, 2, 1, 1, 2), (1, 2, 4, 4, 5), 2, 4, 2, padding=1, padding_mode="reflect", layer="Conv3d"),
]


@pytest.mark.parametrize("name", PEERS)
@workers(4, transports=("mpi",))
def test_where_peers_fail(name):
    assert check(PEERS[name]) == "equal"


@workers(1, 2, 3, 4)
def test_equal_to_torch(gridwise_setting):
    outcomes = check_all(GRIDS, gridwise_setting[1])
    assert set(outcomes) <= {"equal"}


REFUSED = {
    "kernel wider than the input": conv((1, 1, 2, 1), (1, 2, 3, 8), 2, 2, 5),
    "reflect wider than the input": conv((1, 1, 2, 1), (1, 2, 3, 8), 2, 2, 7, padding=3, padding_mode="reflect"),
    "circular twice round": conv((1, 1, 2, 1), (1, 2, 3, 8), 2, 2, 9, padding=4, padding_mode="circular"),
    "other channels": conv((1, 1, 2, 1), (1, 3, 8, 8), 2, 2, 3),
    "groups that do not divide": conv((1, 1, 2, 1), (1, 3, 8, 8), 3, 4, 3, groups=2),
    "same with a stride": conv((1, 1, 2, 1), (1, 2, 8, 8), 2, 2, 3, stride=2, padding="same"),
    "no such mode": conv((1, 1, 2, 1), (1, 2, 8, 8), 2, 2, 3, padding_mode="mirror"),
    "an empty dim": conv((1, 1, 2, 1), (1, 2, 0, 8), 2, 2, 3, padding=1),
}


@pytest.mark.parametrize("name", REFUSED)
@workers(2, transports=("mpi",))
def test_refused_on_all_workers(name):
    assert check(REFUSED[name]) == "refused"


@workers(2)
def test_refusals_say_the_numbers_and_leave_the_layer_usable():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    layer = gridwise.nn.DistributedConv2d(P_x, 2, 2, 5)
    with pytest.raises(PartitionError, match=r"global input of shape \(1, 2, 4, 8\).*Kernel size: \(5 x 5\)"):
        layer(torch.zeros(1, 2, 2, 8))
    with pytest.raises(PartitionError, match="double"):
        layer(torch.zeros(1, 2, 4, 8, dtype=torch.float64))
    rows = 2 if P_x.rank == 0 else 4  # a bad block on one worker is refused on both
    with pytest.raises(PartitionError, match=r"worker 0: needs a block of 4 dims"):
        layer(torch.zeros(2, rows) if P_x.rank == 0 else torch.zeros(1, 2, rows, 8))
    assert layer(torch.zeros(1, 2, 4, 8)).shape == (1, 2, 2, 4)


@workers(4, transports=("mpi",))
def test_families():
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([1, 1, 2, 2])
    P_c = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition([1, 2, 1, 1])
    P_w = world.create_cartesian_topology_partition([2, 2, 1, 1])
    P_g, P_s = (world.create_cartesian_topology_partition(shape) for shape in ([2, 1, 2, 1], [1, 2, 2, 1]))
    made = gridwise.nn.DistributedConv2d
    assert type(made(P_x, 2, 2, 3)) is gridwise.nn.DistributedFeatureConv2d
    assert type(made(P_c, 2, 2, 3, P_y=P_c, P_w=P_w)) is gridwise.nn.DistributedChannelConv2d
    general = made(P_x, 2, 2, 3, P_y=P_s, P_w=P_g)
    assert type(general) is gridwise.nn.DistributedGeneralConv2d
    assert isinstance(general, made)
    assert type(copy.deepcopy(general)) is type(general)
    with pytest.raises(PartitionError, match="`P_y` is missing"):
        made(P_x, 2, 2, 3, P_w=P_w)
    with pytest.raises(PartitionError, match=r"`P_y` .* must be \(1, 2, 1, 1\)"):
        made(P_x, 2, 2, 3, P_y=P_x, P_w=P_w)
    with pytest.raises(PartitionError, match="takes no `P_y`"):
        gridwise.nn.DistributedFeatureConv2d(P_x, 2, 2, 3, P_y=P_c, P_w=P_w)


@workers(3, transports=("mpi",))
def test_gradients_of_gradients_with_an_empty_block():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 3])
    layer = gridwise.nn.DistributedConv1d(P_x, 2, 2, 3, dtype=torch.float64)
    rows = (2, 1, 1)[P_x.rank]  # two outputs on three workers
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    x = torch.randn(1, 2, rows, dtype=torch.float64)
    check_gradients(lambda x: layer(x) ** 2, x)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad((layer(x) ** 3).sum(), x, create_graph=True)
    (gradient**2).sum().backward()
    whole = gridwise.gather(x.detach(), P_x)
    got = layer.weight.grad
    if P_x.rank == 0:
        weight.requires_grad_()
        whole.requires_grad_()
        y = torch.nn.functional.conv1d(whole, weight, bias)
        (expected,) = torch.autograd.grad((y**3).sum(), whole, create_graph=True)
        (expected**2).sum().backward()
        torch.testing.assert_close(got, weight.grad)


@workers(2, transports=("mpi",))
def test_new_sizes_and_dtypes_are_planned_anew():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    layer = gridwise.nn.DistributedConv2d(P_x, 1, 1, 3, padding=1)
    for rows in (4, 6, 4):
        assert layer(torch.zeros(1, 1, rows + P_x.rank, 5)).shape[2] in (rows, rows + 1)
    layer.double()
    assert layer(torch.zeros(1, 1, 4, 5, dtype=torch.float64)).dtype == torch.float64
    layer.to(torch.bfloat16)
    y = layer(torch.ones(1, 1, 4, 5, dtype=torch.bfloat16))
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.bfloat16


@workers(2, transports=("mpi",))
def test_channels_last_stays():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    layer = gridwise.nn.DistributedConv2d(P_x, 4, 4, 3, padding=1).to(memory_format=torch.channels_last)
    y = layer(torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
