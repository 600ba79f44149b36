"""Optimisers and wrappers that need whole tensors refuse blocks, without being asked."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import gridwise
from gridwise.nn.parameters import elementwise
from gridwise.nn.parameters.elementwise import KNOWN
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


class Signs(torch.optim.Optimizer):
    """Moves by signs of a momentum: element by element."""

    def __init__(self, params: Any, lr: float = 0.1, beta: float = 0.9, *, of_rows: bool = False) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "of_rows": of_rows})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.mul_(group["beta"]).add_(p.grad)
                scale = m.norm(dim=-1, keepdim=True) if group["of_rows"] else 1
                p.sub_(m.sign() * scale, alpha=group["lr"])
        return loss


class Needy(Signs):
    def __init__(self, params: Any, model: Any) -> None:
        super().__init__(params)


@workers(2, transports=("gloo",))
def test_an_optimiser_that_nobody_knows_is_tried_with_its_own_settings() -> None:
    split = gridwise.nn.DistributedLinear(gridwise.world().create_cartesian_topology_partition([1, 2]), 4, 4)
    x, state = torch.ones(2, 2), torch.get_rng_state()
    stepped(Signs(split.parameters()), split, x)
    stepped(Signs(split.parameters(), lr=0.0), split, x)
    stepped(gridwise.optim.AnyPrecisionAdamW(split.parameters()), split, x)
    base = torch.optim.SGD(split.parameters(), lr=0.1)
    stepped(gridwise.optim.SlowMomentumOptimizer(base), split, x)
    with pytest.raises(
        gridwise.errors.UnsupportedError, match=r"(?s)Signs does not work element by element \(on matri"
    ):
        stepped(Signs(split.parameters(), of_rows=True), split, x)
    with pytest.raises(gridwise.errors.UnsupportedError, match=r"Needy is not known .* its constructor needs model"):
        stepped(Needy(split.parameters(), split), split, x)
    assert torch.equal(torch.get_rng_state(), state)
    for known in KNOWN - {gridwise.optim.SlowMomentumOptimizer}:
        optimizer = known(split.parameters(), lr=0.01)
        settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        assert elementwise._trial(known, optimizer, settings) is None, known


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


@workers(2, transports=("gloo",))
def test_fully_shard_around_and_in_a_distributed_model_is_refused() -> None:
    world = gridwise.world()
    P_x, mesh = (
        world.create_cartesian_topology_partition([2, 1]),
        DeviceMesh.from_group(world.transport.group_of(world.team), "cpu"),
    )
    for parameters in ("whole", "cut"):
        model = gridwise.distribute(torch.nn.Sequential(torch.nn.Linear(4, 4)), P_x, parameters=parameters)
        around = torch.nn.Sequential(torch.nn.Linear(4, 4), model)
        other = gridwise.distribute(torch.nn.Sequential(torch.nn.Linear(4, 4)), P_x, parameters=parameters)
        for called, sharded in ((around, around), (other, other[0])):
            fully_shard(sharded, mesh=mesh)
            with pytest.raises(gridwise.errors.UnsupportedError, match=r"(?s)fully_shard has .* parameters='cut'"):
                called(torch.ones(2, 4))
