"""Optimisers and wrappers that need whole tensors refuse blocks, without being asked."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import gridwise
from gridwise.testing import workers


def stepped(optimizer: torch.optim.Optimizer, model: torch.nn.Module, x: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@workers(2)
def test_blocks_are_refused_and_replicas_are_not() -> None:
    split = gridwise.nn.DistributedLinear(
        gridwise.world().create_cartesian_topology_partition([1, 2]), 4, 4, bias=False
    )
    whole = gridwise.nn.DistributedLinear(
        gridwise.world().create_cartesian_topology_partition([2, 1]), 4, 4, bias=False
    )
    kinds = [torch.optim.LBFGS, torch.optim.Adafactor, *([torch.optim.Muon] if hasattr(torch.optim, "Muon") else [])]
    for kind in kinds:
        with pytest.raises(gridwise.errors.UnsupportedError, match=f"{kind.__name__} computes with whole tensors"):
            stepped(kind(split.parameters()), split, torch.ones(2, 2))
        stepped(kind(whole.parameters()), whole, torch.ones(1, 4))
    for name in ("Prodigy", "DAdaptAdam", "CAME", "Adam_mini", "AdaFactor"):  # of other packages
        kind = type(name, (torch.optim.SGD,), {})
        with pytest.raises(gridwise.errors.UnsupportedError, match=f"{name} computes with whole tensors"):
            stepped(kind(split.parameters(), lr=0.1), split, torch.ones(2, 2))
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        stepped(kind(split.parameters(), lr=0.1), split, torch.ones(2, 2))
    gridwise.check_replicas(whole)


@workers(2, transports=("gloo",))
def test_data_parallel_wrappers_refuse_blocks() -> None:
    """They would copy the block of the first worker to all others, and average what is of different blocks."""
    world = gridwise.world()
    group = world.transport.group_of(world.team)  # of these workers, not of all in the pool
    DDP = functools.partial(torch.nn.parallel.DistributedDataParallel, process_group=group)
    split = gridwise.nn.DistributedLinear(world.create_cartesian_topology_partition([1, 2]), 4, 4)
    before = split.weight.detach().clone()
    with pytest.raises(gridwise.errors.UnsupportedError, match=r"(?s)DistributedDataParallel.*`1\.weight`.*batch axis"):
        DDP(torch.nn.Sequential(torch.nn.Identity(), split))
    torch.testing.assert_close(split.weight.detach(), before)
    whole = gridwise.nn.DistributedLinear(world.create_cartesian_topology_partition([2, 1]), 4, 1, bias=False)
    DDP(whole)(torch.ones(1, 4)).sum().backward()
    torch.testing.assert_close(whole.weight.grad, torch.full((1, 4), 2.0))


@workers(2, transports=("gloo",))
def test_parameters_that_are_sharded_in_place_refuse_blocks() -> None:
    world = gridwise.world()
    mesh = DeviceMesh.from_group(world.transport.group_of(world.team), "cpu")
    split = gridwise.nn.DistributedLinear(world.create_cartesian_topology_partition([1, 2]), 4, 4)
    with pytest.raises(gridwise.errors.UnsupportedError, match=r"(?s)fully_shard.*`weight`.*batch axis"):
        fully_shard(torch.nn.Sequential(split), mesh=mesh)
    whole = gridwise.nn.DistributedLinear(world.create_cartesian_topology_partition([2, 1]), 4, 1, bias=False)
    fully_shard(whole, mesh=mesh)
