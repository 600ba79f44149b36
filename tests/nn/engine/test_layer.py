"""Layers with parameters beyond their own tests: other grids' blocks, frozen parameters, empty blocks, autocast, copies."""

from __future__ import annotations

import copy

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.errors import PartitionError
from gridwise.nn.parameters.blocks import BlockParameter, BlockTensor
from gridwise.testing import workers


def grid(*shape: int, ranks: list[int] | None = None) -> gridwise.CartesianPartition:
    world = gridwise.world()
    return world.create_partition_inclusive(ranks or range(world.size)).create_cartesian_topology_partition(shape)


@workers(2)
def test_the_block_of_another_grid_is_not_taken_for_ones_own():
    one = nn.DistributedConv1d(grid(1, 2, 1), 4, 4, 3)
    other = nn.DistributedConv1d(grid(1, 2, 1, ranks=[1, 0]), 4, 4, 3)
    with pytest.raises(PartitionError, match="is the block"):
        other.load_state_dict(one.state_dict())
    copy.deepcopy(one).load_state_dict(one.state_dict())


@workers(2)
def test_a_bias_learns_beside_a_frozen_weight():
    P = grid(1, 2)
    layer = nn.DistributedLinear(P, 4, 6, P_y=P, P_w=grid(2, 1))
    layer.weight.requires_grad_(False)
    layer(torch.ones(3, 2)).sum().backward()
    if layer.bias.numel():
        assert torch.equal(layer.bias.grad, torch.full_like(layer.bias, 3.0))


@workers(2)
def test_a_worker_without_classes_joins_the_backward_of_the_loss():
    P = grid(1, 2)
    layer = nn.DistributedLinear(P, 4, 1)
    x = torch.ones(3, 2, requires_grad=True)
    loss = nn.DistributedNLLLoss(P)(layer(x), torch.zeros(3, dtype=torch.int64))
    loss.backward()
    assert x.grad is not None


@workers(2)
@pytest.mark.parametrize("bad", ["input", "target"])
def test_a_number_that_is_none_on_one_worker_is_refused_by_all(bad):
    P = grid(2)
    values = {"input": torch.full((3,), 0.5), "target": torch.ones(3)}
    if gridwise.world().rank == 1:
        values[bad] = torch.full((3,), float("nan") if bad == "input" else 2.0)
    with pytest.raises(PartitionError, match="between 0 and 1"):
        nn.DistributedBCELoss(P)(values["input"], values["target"])


@workers(2)
def test_autocast_lowers_the_precision_on_workers_without_work_too():
    world = gridwise.world()
    P_0, P_1 = grid(1, 1, ranks=[0]), grid(1, 1, ranks=[1])
    layer = nn.DistributedLinear(P_0, 4, 6, P_y=P_1, P_w=P_0)
    x = torch.ones(2, 4) if world.rank == 0 else gridwise.zero_volume_tensor()
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y = layer(x)
        torch.manual_seed(0)
        first = nn.DistributedConv1d(grid(1, 1, 2), 1, 1, 3)
        z = nn.DistributedConv1d(grid(1, 1, 2), 1, 1, 1)(first(torch.ones(1, 1, 2 if world.rank == 0 else 1)))
    assert y.dtype == z.dtype == torch.bfloat16
    parts = world.transport.gather_bytes(y.detach().float().cpu().numpy().tobytes(), world.team)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        here = torch.nn.functional.linear(torch.ones(2, 4), layer.weight, layer.bias) if world.rank == 0 else None
    expected = world.transport.gather_bytes(
        b"" if here is None else here.detach().float().cpu().numpy().tobytes(), world.team
    )
    assert parts[1] == expected[0]


@workers(2)
def test_a_distributed_model_can_be_copied():
    P = grid(1, 1, 2)
    torch.manual_seed(0)
    model = gridwise.distribute(torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3, padding=1), torch.nn.ReLU()), P)
    twin = copy.deepcopy(model)
    x = torch.randn(1, 2, 4)
    assert torch.equal(model(x), twin(x))
    assert list(model.state_dict()) == list(twin.state_dict())
    twin(x).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())


@workers(2)
def test_second_order_through_a_norm_where_one_workers_input_needs_no_gradient():
    world = gridwise.world()
    layer = nn.DistributedLayerNorm(grid(1, 2), 4, elementwise_affine=False, dtype=torch.float64)
    x = torch.arange(6.0, dtype=torch.float64).view(3, 2).add(world.rank).square().requires_grad_(world.rank == 0)
    layer(x).pow(3).sum().backward(create_graph=True)
    assert (x.grad is not None) == (world.rank == 0)


class Scaled(torch.nn.Module):
    """A parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((2, 1), 3.0))
        self.conv = torch.nn.Conv1d(1, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.conv(x)


@workers(3)
def test_a_copy_of_a_model_holds_its_own_parameters_alike():
    torch.manual_seed(0)
    sequential, P = Scaled(), grid(1, 1, 2, ranks=[0, 1])
    twin = copy.deepcopy(gridwise.distribute(copy.deepcopy(sequential), P))
    twin.load_state_dict(sequential.state_dict())
    assert twin.scale.numel() == (2 if P.active else 0)
    assert all(isinstance(value, BlockTensor | BlockParameter) for value in twin.state_dict().values())


@workers(2)
def test_global_tensors_in_the_place_of_blocks_are_refused():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 2, 1])
    conv, norm, x = nn.DistributedConv1d(P_x, 4, 6, 3), nn.DistributedBatchNorm1d(P_x, 4), torch.ones(2, 2, 5)
    whole = torch.nn.Conv1d(4, 6, 3)
    with pytest.raises(PartitionError, match=r"`weight` has shape \(6, 4, 3\), where .* shape \(3, 4, 3\)"):
        conv.weight = whole.weight
    conv.weight = torch.nn.Parameter(conv.weight.detach() + 1)
    norm.running_mean = torch.zeros(4 if P_x.rank else 2)
    with pytest.raises(PartitionError, match=r"worker 1: `running_mean` has shape \(4,\)"):
        norm(x)
    conv.bias.data = whole.bias.data
    with pytest.raises(PartitionError, match=r"workers 0, 1: `bias` has shape \(6,\)"):
        conv(x)
