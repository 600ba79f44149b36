"""On real workers, over MPI and gloo: resumed training, other worker counts, and torch's own distributed tensors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import blocks
import cloudpickle
import pytest
import torch
from torch import nn

import gridwise
from gridwise import checkpoint
from gridwise.errors import CheckpointDamaged, CheckpointMismatch, CheckpointWriteFailed
from gridwise.partition import Partition
from gridwise.testing import workers

cloudpickle.register_pickle_by_value(blocks)

HIDDEN, INPUTS, OUTPUTS = 10, 5, 3


class OneSum(torch.autograd.Function):
    """The sum over the workers, bitwise the same on all. The loss is one value with copies: its gradient counts once."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, P: Partition) -> torch.Tensor:
        return P.transport.all_sum(part, P.team)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class TwoLayers(nn.Module):
    """A perceptron whose hidden units are spread over the workers: rows of one weight, columns of the other."""

    def __init__(self, P: Partition) -> None:
        super().__init__()
        self.P = P
        g = torch.Generator().manual_seed(11)
        rank = P.transport.rank
        wholes = {
            "first": torch.randn(HIDDEN, INPUTS, generator=g, dtype=torch.float64),
            "shift": torch.randn(HIDDEN, generator=g, dtype=torch.float64),
            "second": torch.randn(OUTPUTS, HIDDEN, generator=g, dtype=torch.float64),
        }
        for name, whole in wholes.items():
            layout = blocks.line(P, tuple(whole.shape), dim=1 if name == "second" else 0)
            self.register_parameter(name, blocks.split(whole, layout, rank))
        self.bias = nn.Parameter(torch.zeros(OUTPUTS, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.tanh(x @ self.first.T + self.shift) @ self.second.T
        return OneSum.apply(part, self.P) + self.bias


def training(P: Partition) -> dict[str, Any]:
    net = TwoLayers(P)
    adam = torch.optim.Adam(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 3, gamma=0.7)
    return {"net": net, "adam": adam, "schedule": schedule, "rng": torch.Generator().manual_seed(3), "step": 0}


def train(state: dict[str, Any], steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        x = torch.randn(16, INPUTS, generator=state["rng"], dtype=torch.float64)
        loss = (state["net"](x) - x[:, :OUTPUTS].sin()).square().mean()
        state["adam"].zero_grad()
        loss.backward()
        state["adam"].step()
        state["schedule"].step()
        state["step"] += 1
        losses.append(loss.item())
    return losses


@workers(4)
def test_a_training_run_that_stops_and_goes_on(tmp_path: Path) -> None:
    P = gridwise.world()
    state = training(P)
    train(state, 5)
    checkpoint.save(tmp_path / "c", state)
    expected = train(state, 6)

    again = training(P)
    checkpoint.load(tmp_path / "c", again)
    assert train(again, 6) == expected  # bit for bit

    three = P.create_partition_inclusive([0, 1, 2])
    if three.active:
        fewer = training(three)
        checkpoint.load(tmp_path / "c", fewer, three)
        assert train(fewer, 3) == pytest.approx(expected[:3], rel=1e-12, abs=1e-12)
        checkpoint.save(tmp_path / "d", fewer, three)
    one = P.create_partition_inclusive([2])
    P.barrier()
    if one.active:
        alone = training(one)
        checkpoint.load(tmp_path / "d", alone, one)
        assert alone["step"] == 8
        assert train(alone, 3) == pytest.approx(expected[3:], rel=1e-12, abs=1e-12)
    P.barrier()


@workers(4)
@pytest.mark.parametrize("seed", range(3))
def test_some_workers_to_others(tmp_path: Path, seed: int) -> None:
    P = gridwise.world()
    choice = random.Random(seed)
    whole = torch.arange(13 * 7, dtype=torch.float32).view(13, 7)
    n, m = choice.randint(1, 4), choice.randint(1, 4)
    source = P.create_partition_inclusive(choice.sample(range(4), n))
    target = P.create_partition_inclusive(choice.sample(range(4), m))
    rank = P.transport.rank
    checkpoint.save(tmp_path / "c", {"w": blocks.split(whole, blocks.line(source, (13, 7)), rank)}, source)
    P.barrier()
    layout = blocks.line(target, (13, 7), dim=1)
    into = {"w": blocks.split(torch.zeros(13, 7), layout, rank)}
    checkpoint.load(tmp_path / "c", into, target)
    if target.active:
        assert torch.equal(into["w"].detach(), whole[layout.block(rank).slices])
    P.barrier()


@workers(3)
def test_an_error_of_one_worker_is_raised_on_all(tmp_path: Path) -> None:
    from gridwise.checkpoint import disk

    P = gridwise.world()
    checkpoint.save(tmp_path / "c", {"x": torch.ones(3), "own": checkpoint.PerWorker(P.rank)})
    real = disk.sync

    def broken(fd: int) -> None:
        raise OSError(28, "No space left on device")

    disk.sync = broken if P.rank == 2 else real
    try:
        with pytest.raises(CheckpointWriteFailed, match=r"worker 2.*No space left"):
            checkpoint.save(tmp_path / "c", {"x": torch.ones(3), "own": checkpoint.PerWorker(torch.ones(P.rank))})
        with pytest.raises(CheckpointWriteFailed, match=r"worker 2.*No space left"):
            checkpoint.async_save(tmp_path / "c", {"own": checkpoint.PerWorker(torch.ones(P.rank))}).wait()
    finally:
        disk.sync = real
    with pytest.raises(CheckpointMismatch, match="worker 1"):
        checkpoint.load(tmp_path / "c", {"x": torch.zeros(3) if P.rank != 1 else torch.zeros(4)})
    into = {"x": torch.zeros(3), "own": checkpoint.PerWorker(None)}
    checkpoint.load(tmp_path / "c", into)
    assert into["own"].value == P.rank
    if P.rank == 0:
        (file,) = (tmp_path / "c").glob("data-*/w0.safetensors")
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    P.barrier()
    with pytest.raises(CheckpointDamaged, match=r"w0\.safetensors.*'x'"):
        checkpoint.load(tmp_path / "c", {"x": torch.zeros(3)} if P.rank == 1 else {})


@workers(2)
def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    P = gridwise.world()
    state = training(P)
    before = {name: p.detach().clone() for name, p in state["net"].named_parameters()}
    pending = checkpoint.async_save(tmp_path / "c", state)
    train(state, 10)  # uses the same transport
    pending.wait()
    into = training(P)
    train(into, 1)
    checkpoint.load(tmp_path / "c", into)
    assert into["step"] == 0
    for name, parameter in into["net"].named_parameters():
        assert torch.equal(parameter.detach(), before[name])


@workers(2, transports=["gloo"])
def test_the_seeds_example_with_sharded_tensors(tmp_path: Path) -> None:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharded_tensor import state_dict_hook
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    import gridwise.checkpoint as cp

    rank = gridwise.world().rank
    model = nn.Linear(2, 2)
    spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", "rank:1/cpu"])

    def sharded(value: float) -> Any:
        st = sharded_tensor.empty(spec, 5, 3)
        whole = torch.arange(15.0).view(5, 3) * value
        for shard in st.local_shards():
            first, size = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
            shard.tensor.copy_(whole[first : first + size])
        return st

    model.sharded = sharded(1.0)
    model._register_state_dict_hook(state_dict_hook)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.bias.fill_(4.0)

    fs_writer = cp.FileSystemWriter(path=tmp_path / "checkpoint")
    cp.save_state_dict(state_dict=model.state_dict(), storage_writer=fs_writer)

    model.sharded = sharded(0.0)
    with torch.no_grad():
        model.weight.zero_()
    state = model.state_dict()
    cp.load_state_dict(state_dict=state, storage_reader=cp.FileSystemReader(path=tmp_path / "checkpoint"))
    assert torch.equal(model.weight.detach(), torch.full((2, 2), 3.0))
    (shard,) = model.sharded.local_shards()
    first = shard.metadata.shard_offsets[0]
    assert torch.equal(shard.tensor, torch.arange(15.0).view(5, 3)[first : first + shard.tensor.shape[0]])
    if rank == 0:  # and in a sequential program, without torch.distributed
        P = gridwise.world().create_partition_inclusive([0])
        assert torch.equal(cp.load(tmp_path / "checkpoint", P=P)["sharded"], torch.arange(15.0).view(5, 3))


@workers(2, transports=["gloo"])
def test_several_local_shards_on_a_worker(tmp_path: Path) -> None:
    """Saved with two shards on each worker, read back with one on one and three on the other."""
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    world = gridwise.world()
    rank, whole = world.rank, torch.arange(24.0).view(8, 3)

    def sharded(cuts: list[int], owners: list[int], factor: float) -> Any:
        ends = zip(cuts, cuts[1:], owners, strict=False)
        mine = [(a, b) for a, b, owner in ends if owner == rank]
        return init_from_local_shards(
            [
                Shard((whole[a:b] * factor).clone(), ShardMetadata([a, 0], [b - a, 3], f"rank:{rank}/cpu"))
                for a, b in mine
            ],
            (8, 3),
            process_group=world.transport.group_of(world.team),  # the default one may have more workers, of other tests
        )

    for save in (checkpoint.save, checkpoint.async_save):
        pending = save(tmp_path / save.__name__, {"x": sharded([0, 2, 3, 6, 8], [0, 1, 0, 1], 1.0)})
        if pending is not None:
            pending.wait()
        into = sharded([0, 1, 3, 7, 8], [1, 1, 0, 1], -1.0)
        checkpoint.load(tmp_path / save.__name__, {"x": into})
        assert len(into.local_shards()) == (1, 3)[rank]
        for shard in into.local_shards():
            first = shard.metadata.shard_offsets[0]
            assert torch.equal(shard.tensor, whole[first : first + len(shard.tensor)])
        assert torch.equal(checkpoint.load(tmp_path / save.__name__)["x"], whole)
        checkpoint.save(tmp_path / "other", {"x": whole.double()})
        with pytest.raises(CheckpointMismatch, match="float32 in `into`"):
            checkpoint.load(tmp_path / "other", {"x": into})


@workers(4, transports=["gloo"])
def test_dtensors_with_their_optimiser(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(4)
    whole = torch.randn(7, 6)
    mesh = init_device_mesh("cpu", (2, 2))

    def build(placements: list[Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Module()
        net.register_parameter("w", nn.Parameter(distribute_tensor(whole.clone(), mesh, placements)))
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(net: nn.Module, opt: torch.optim.Optimizer) -> None:
        opt.zero_grad()
        (net.w * net.w).sum().backward()
        opt.step()

    net, opt = build([Shard(0), Replicate()])
    step(net, opt)
    checkpoint.save(tmp_path / "c", {"net": net, "opt": opt})
    step(net, opt)
    expected = net.w.full_tensor()
    again, again_opt = build([Shard(1), Shard(0)])
    checkpoint.load(tmp_path / "c", {"net": again, "opt": again_opt})
    step(again, again_opt)
    assert torch.equal(again.w.full_tensor(), expected)


@workers(4)
@pytest.mark.parametrize("shape", [(1, 2, 2, 1), (2, 1, 1, 2), (1, 1, 4, 1)])
def test_distributed_layers_to_sequential_ones_and_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Channels split and the same on all workers of a row: owners write, replicas are compared."""
    P = gridwise.world()
    P_x = P.create_cartesian_topology_partition(shape)

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Sequential(gridwise.nn.DistributedConv2d(P_x, 4, 6, kernel_size=3, padding=1))
        return net, torch.optim.Adam(net.parameters(), lr=0.1)

    def step(net: nn.Module, opt: torch.optim.Optimizer) -> None:
        whole = torch.linspace(-1, 1, 2 * 4 * 8 * 8).view(2, 4, 8, 8)
        x = whole[gridwise.local_slice(P_x, tuple(whole.shape))]
        opt.zero_grad()
        net(x).square().sum().backward()
        opt.step()

    net, opt = build()
    step(net, opt)
    checkpoint.save(tmp_path / "c", {"net": net, "opt": opt})
    checkpoint.save_state_dict(net.state_dict(), checkpoint.FileSystemWriter(tmp_path / "d"))
    again, again_opt = build()
    checkpoint.load(tmp_path / "c", {"net": again, "opt": again_opt})
    step(net, opt)
    step(again, again_opt)
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.detach(), other.detach())

    plain = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1))
    plain_opt = torch.optim.Adam(plain.parameters(), lr=0.1)
    checkpoint.load(tmp_path / "c", {"net": plain, "opt": plain_opt})
    assert torch.equal(checkpoint.load(tmp_path / "d")["0.weight"], plain[0].weight.detach())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    checkpoint.save(tmp_path / "e", {"net": plain})  # a sequential model, the same on all workers
    checkpoint.load(tmp_path / "e", {"net": net})
    checkpoint.load(tmp_path / "c", {"net": again})
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.detach(), other.detach())
