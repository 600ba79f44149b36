"""Parameters on a grid: torch's names and values, blocks that know their place, complete gradients."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

import gridwise
from gridwise.errors import MismatchError, PartitionError
from gridwise.nn.parameters.blocks import BlockParameter, BlockTensor
from gridwise.testing import workers


def grid(*shape):
    world = gridwise.world()
    size = torch.Size(shape).numel()
    return world.create_partition_inclusive(range(size)).create_cartesian_topology_partition(shape)


@workers(1, 2, 3, 4)
def test_initial_values_do_not_depend_on_the_grid(gridwise_setting):
    torch.manual_seed(7)
    expected = torch.nn.Conv2d(3, 8, 3)
    after = torch.get_rng_state()
    torch.manual_seed(7)
    layer = gridwise.nn.DistributedConv2d(grid(1, min(2, gridwise_setting[1]), 1, 1), 3, 8, 3)
    assert torch.equal(torch.get_rng_state(), after)
    for name, whole in expected.named_parameters():
        mine = getattr(layer, name)
        where = mine.block.slices if mine.block else (slice(None),)
        torch.testing.assert_close(mine.data, whole.data[where] if mine.numel() else mine.data)
        assert mine.numel() or not layer.P_x.active


@workers(2)
def test_different_seeds_are_agreed_with_a_warning(gridwise_setting):
    rank = gridwise.world().rank
    torch.manual_seed(rank)
    with pytest.warns(UserWarning, match=r"random generators of workers \(0, 1\) differ"):
        layer = gridwise.nn.DistributedConv1d(grid(1, 1, 2), 1, 1, 3)
    torch.manual_seed(0)
    torch.testing.assert_close(layer.weight.data, torch.nn.Conv1d(1, 1, 3).weight.data)


@workers(3, transports=("mpi",))
def test_layouts_say_who_holds_what():
    layer = gridwise.nn.DistributedConv1d(grid(1, 2, 1), 3, 5, 3)
    rank, weight = gridwise.world().rank, layer.weight
    assert isinstance(weight, BlockParameter)
    assert weight.placement.global_shape == (5, 3, 3)
    assert weight.placement.grid.ranks == (0, 1)
    assert weight.shape == ((3, 3, 3), (2, 3, 3), (0, 3, 3))[rank]
    assert (weight.block is None) == (rank == 2)
    replicated = gridwise.nn.DistributedConv1d(gridwise.world().create_cartesian_topology_partition([1, 1, 3]), 3, 5, 3)
    assert replicated.weight.placement is None
    assert replicated.weight.block is None
    shared = gridwise.nn.DistributedConv1d(grid(2, 1, 1), 3, 5, 3).weight
    assert shared.placement.grid.ranks == (0,)
    assert (shared.block is None) == (rank == 2)


@workers(2, transports=("mpi",))
def test_labels_survive():
    layer = gridwise.nn.DistributedConv1d(grid(1, 2, 1), 3, 5, 3)
    layout, block = layer.weight.placement, layer.weight.block
    twin = copy.deepcopy(layer)
    others = [layer.double().weight, twin.weight, layer.state_dict()["weight"], layer.to_empty(device="cpu").weight]
    for other in others:
        assert isinstance(other, BlockParameter | BlockTensor)
        assert (other.placement, other.block) == (layout, block)
    assert type(layer.weight * 2) is torch.Tensor
    assert twin(torch.zeros(1, 2 - gridwise.world().rank, 4)).shape[1] == twin.weight.shape[0]
    assert "placement" not in repr(torch.optim.SGD(twin.parameters(), 0.1).state_dict())


@workers(2, transports=("mpi",))
def test_layout_is_torchs_again():
    layer = gridwise.nn.DistributedConv1d(grid(1, 2, 1), 3, 5, 3)
    weight, label = layer.weight, layer.state_dict()["weight"]
    assert weight.layout is label.layout is torch.strided
    assert torch.zeros_like(weight, layout=weight.layout).shape == weight.shape
    assert "Layout" not in repr(weight) + repr(label)
    placement = weight.placement
    for tensor in (weight, label):
        with pytest.warns(DeprecationWarning, match=r"`.layout` of a block is now `.placement`"):
            tensor.layout = None
        assert tensor.placement is None
        with pytest.warns(DeprecationWarning, match="placement"):
            tensor.layout = placement
        assert tensor.placement is placement
        assert tensor.layout is torch.strided
        with pytest.raises(AttributeError, match=r"layout \(=torch.strided\) cannot be set"):
            tensor.layout = torch.strided


@workers(1, 2, 3, 4)
def test_state_of_torch_and_own_state_load(gridwise_setting):
    layer = gridwise.nn.DistributedConv1d(grid(1, min(gridwise_setting[1], 3), 1), 3, 5, 3)
    other = torch.nn.Conv1d(3, 5, 3)
    for assign in (False, True):
        with torch.no_grad():
            other.weight += 1
        layer.load_state_dict(other.state_dict(), assign=assign)
        block = layer.weight.block
        if layer.weight.numel():
            torch.testing.assert_close(layer.weight.data, other.weight[block.slices if block else (slice(None),)].data)
        assert isinstance(layer.weight, BlockParameter)
    own = layer.state_dict()
    layer.load_state_dict(own)
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(torch.nn.Conv1d(3, 7, 3).state_dict())


@workers(1, 2, 3, 4, transports=("mpi",))
def test_gradients_are_complete_in_every_use(gridwise_setting):
    count, rank = gridwise_setting[1], gridwise.world().rank
    P_x = grid(1, 1, count)
    layer = gridwise.nn.DistributedConv1d(P_x, 2, 3, 3, padding=1, dtype=torch.float64)
    sequential = torch.nn.Conv1d(2, 3, 3, padding=1, dtype=torch.float64)
    sequential.load_state_dict(layer.state_dict())
    whole = torch.randn(2, 2, 7, dtype=torch.float64)
    x = whole[gridwise.local_slice(P_x, whole.shape)]

    def same(names=("weight", "bias")):
        for name in names:
            torch.testing.assert_close(getattr(layer, name).grad, getattr(sequential, name).grad)

    for step in range(2):  # accumulation
        ((step + 1) * layer(x) ** 2).sum().backward()
        ((step + 1) * sequential(whole) ** 2).sum().backward()
    same()
    y, y_whole = (layer(x) ** 2).sum(), (sequential(whole) ** 2).sum()
    for keep in (True, False):  # a retained graph
        y.backward(retain_graph=keep)
        y_whole.backward(retain_graph=keep)
    same()
    (gradient,) = torch.autograd.grad((layer(x) ** 2).sum(), layer.weight)
    (expected,) = torch.autograd.grad((sequential(whole) ** 2).sum(), sequential.weight)
    torch.testing.assert_close(gradient, expected)
    layer.bias.requires_grad_(False)
    layer.zero_grad()
    sequential.zero_grad()
    (layer(layer(x)[:, :2]) ** 2).sum().backward()  # one layer used twice
    (sequential(sequential(whole)[:, :2]) ** 2).sum().backward()
    same(("weight",))
    assert layer.bias.grad is None
    assert rank < count


@workers(2, transports=("mpi",))
def test_a_penalty_on_gradients_counts_once():
    P_x = grid(1, 1, 2)
    layer = gridwise.nn.DistributedConv1d(P_x, 1, 1, 3, padding=1, bias=False, dtype=torch.float64)
    sequential = torch.nn.Conv1d(1, 1, 3, padding=1, bias=False, dtype=torch.float64)
    sequential.load_state_dict(layer.state_dict())
    whole = torch.randn(1, 1, 6, dtype=torch.float64)
    for model, x in ((layer, whole[gridwise.local_slice(P_x, whole.shape)]), (sequential, whole)):
        (gradient,) = torch.autograd.grad((model(x) ** 2).sum(), model.weight, create_graph=True)
        (gradient**2).sum().backward()
    torch.testing.assert_close(layer.weight.grad, sequential.weight.grad)


@workers(2, transports=("mpi",))
def test_a_frozen_layer_and_no_grad_send_no_gradients():
    P_x = grid(1, 1, 2)
    layer, transport = gridwise.nn.DistributedConv1d(P_x, 1, 1, 3), P_x.transport
    summed, all_sum = [], transport.all_sum

    def noted(x, *args):
        summed.append(x.numel())
        return all_sum(x, *args)

    transport.all_sum = noted
    try:
        layer(torch.zeros(1, 1, 4)).sum().backward()
        assert sum(summed) >= 4, "a weight of three numbers and a bias"
        summed.clear()
        layer.requires_grad_(False)
        assert not layer(torch.zeros(1, 1, 4)).requires_grad
        x = torch.zeros(1, 1, 4, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad is not None
        layer.requires_grad_()
        with torch.no_grad():
            assert not layer(torch.zeros(1, 1, 4)).requires_grad
        with torch.inference_mode():
            assert layer(torch.zeros(1, 1, 4)).is_inference()
        assert summed == []
    finally:
        del transport.all_sum


@workers(2)
def test_constructors_are_agreed():
    rank, P_x = gridwise.world().rank, grid(1, 1, 2)
    with pytest.raises(MismatchError, match="constructs DistributedFeatureConv1d"):
        gridwise.nn.DistributedConv1d(P_x, 1, 1, 3 + rank)
    with pytest.raises(PartitionError, match="out_channels must be divisible by groups"):
        gridwise.nn.DistributedConv1d(P_x, 2, 3, 3, groups=2)
    with pytest.raises(
        PartitionError, match=r"`P_x` \(=workers \(0, 1\) in a row\) must be a partition on a grid of 3"
    ):
        gridwise.nn.DistributedConv1d(gridwise.world(), 1, 1, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = gridwise.nn.DistributedConv1d(P_x, 1, 1, 3)
    layer(torch.zeros(1, 1, 4))  # what was refused does not count: this is the same layer on both workers
