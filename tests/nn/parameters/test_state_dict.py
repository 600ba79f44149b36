"""State dicts: a block that was saved knows its place, and whole models come out of blocks."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gridwise
from gridwise.errors import MismatchError, PartitionError
from gridwise.testing import workers

nn = gridwise.nn


def grid(*shape):
    size = torch.Size(shape).numel()
    return gridwise.world().create_partition_inclusive(range(size)).create_cartesian_topology_partition(shape)


def saved(state):
    """What `torch.load` reads of what `torch.save` wrote, with its default of plain data only."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def of_worker(state, rank):
    """The state as another worker has saved it."""
    world = gridwise.world()
    data = world.transport.gather_bytes(pickle.dumps(state), world.team)
    return pickle.loads(data[rank])


@workers(2, 4)
@pytest.mark.parametrize("way", [saved, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_block_loads_where_it_was_saved_and_nowhere_else(gridwise_setting, way):
    world = gridwise.world()
    model = torch.nn.Sequential(nn.DistributedConv1d(grid(1, world.size, 1), 3, 8, 3), torch.nn.ReLU())
    state, before = way(model.state_dict()), model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.zero_()
    model.load_state_dict(state)
    torch.testing.assert_close(model[0].weight.detach().as_subclass(torch.Tensor), before)
    other = of_worker(way(model.state_dict()), 0)
    if world.rank == 0:
        model.load_state_dict(other)
    else:
        words = rf"0\.weight .*\[0:{8 // world.size}.*worker {world.rank} holds.*gridwise.checkpoint.*full_state_dict"
        with pytest.raises(PartitionError, match=f"(?s){words}"):
            model.load_state_dict(other)


@workers(2)
def test_a_block_of_another_model_of_the_same_shape_is_refused():
    large = nn.DistributedConv1d(grid(1, 2, 1), 3, 8, 3)
    small = nn.DistributedConv1d(grid(1, 2, 1), 3, 4, 3)  # whose whole weight has the shape of a block
    with pytest.raises(PartitionError, match=r"of a tensor of shape \(8, 3, 3\)"):
        small.load_state_dict(saved(large.state_dict()))
    replicated = nn.DistributedConv1d(grid(1, 1, 2), 3, 4, 3)
    with pytest.raises(PartitionError, match=r"of a tensor of shape \(8, 3, 3\)"):
        replicated.load_state_dict(saved(large.state_dict()))
    large.load_state_dict({name: value.clone() for name, value in large.state_dict().items()})  # no label: by its shape


@workers(3, transports=("mpi",))
def test_a_worker_without_a_part_says_so():
    layer = nn.DistributedConv1d(grid(1, 2, 1), 3, 5, 3)
    layer.load_state_dict(saved(layer.state_dict()))
    other = of_worker(saved(layer.state_dict()), 2)
    if gridwise.world().rank < 2:
        with pytest.raises(PartitionError, match="no part of a tensor of shape"):
            layer.load_state_dict(other)


@workers(2, transports=("mpi",))
def test_a_file_of_a_block_is_read_without_gridwise(tmp_path):
    layer = nn.DistributedConv1d(grid(1, 2, 1), 3, 5, 3)
    path = Path(tmp_path) / f"{gridwise.world().rank}.pt"
    torch.save(layer.state_dict(), path)
    code = f"""
import sys, torch
state = torch.load({str(path)!r}, weights_only=True)
assert "gridwise" not in sys.modules
print(tuple(state["weight"].shape), state._metadata[""]["blocks"]["weight"])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    rank = gridwise.world().rank
    assert said.strip() == (
        f"{((3, 3, 3), (2, 3, 3))[rank]} {{'shape': (5, 3, 3), 'start': ({3 * rank}, 0, 0), "
        f"'stop': ({3 + 2 * rank}, 3, 3), 'worker': {rank}}}"
    )


class Net(torch.nn.Module):
    """Layers with cut, replicated and scalar state, and a parameter outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(2, 6, 3, padding=1), torch.nn.BatchNorm2d(6)
        self.scale = torch.nn.Parameter(torch.randn(6, 1, 1))
        self.last = torch.nn.Conv2d(6, 3, 1, dtype=torch.float32)

    def forward(self, x):
        return self.last(self.norm(self.conv(x)) * self.scale)


@workers(1, 2, 3, 4)
@pytest.mark.parametrize("worker", [None, "last"])
def test_the_whole_state_of_a_model_loads_into_the_sequential_one(worker):
    world = gridwise.world()
    torch.manual_seed(0)
    sequential = Net()
    sequential.norm.running_mean += torch.arange(6)
    sequential.norm.num_batches_tracked += 7
    size = min(world.size, 3)  # with 4 workers, one is outside
    model = gridwise.distribute(copy.deepcopy(sequential), grid(1, size, 1, 1))
    by_hand = torch.nn.Sequential(nn.DistributedConv2d(grid(1, size, 1, 1), 2, 6, 3), torch.nn.Linear(2, 2))
    by_hand.bfloat16()
    root = world.size - 1 if worker == "last" else None
    whole, other = nn.full_state_dict(model, worker=root), nn.full_state_dict(by_hand, worker=root)
    if root not in (None, world.rank):
        assert not whole
        assert not other
        return
    assert {type(value) for value in whole.values()} == {torch.Tensor}
    twin = Net()
    twin.load_state_dict(saved(whole))
    for name, value in sequential.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[name], value, rtol=0, atol=0)
    assert {name: (value.shape, value.dtype) for name, value in other.items()} == {
        name: (value.shape, torch.bfloat16)
        for name, value in torch.nn.Sequential(torch.nn.Conv2d(2, 6, 3), torch.nn.Linear(2, 2)).state_dict().items()
    }
    whole["conv.weight"].zero_()  # a copy, not the model's own
    assert model.conv.weight.count_nonzero() == model.conv.weight.numel()


@workers(2)
def test_a_whole_state_loads_on_another_grid_and_is_no_block():
    rows, channels = nn.DistributedLinear(grid(1, 2), 6, 5), nn.DistributedLinear(grid(2, 1), 6, 5)
    whole = saved(nn.full_state_dict(rows))
    channels.load_state_dict(whole)
    block = rows.weight.block.slices
    torch.testing.assert_close(channels.weight[block].detach(), rows.weight.detach().as_subclass(torch.Tensor))
    assert "blocks" not in whole._metadata[""]


@workers(2)
def test_whole_states_are_asked_for_alike():
    rank = gridwise.world().rank
    layer = nn.DistributedLinear(grid(1, 2), 6, 5)
    with pytest.raises(MismatchError, match="full_state_dict"):
        nn.full_state_dict(layer, worker=rank)
    with pytest.raises(MismatchError, match="full_state_dict"):
        nn.full_state_dict(layer if rank else torch.nn.Sequential(layer))
    with pytest.raises(PartitionError, match=r"`worker` \(=2\) is no worker"):
        nn.full_state_dict(layer, worker=2)
