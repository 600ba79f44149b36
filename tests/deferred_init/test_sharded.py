"""Deferred modules under `fully_shard`: materialised and loaded shard by shard."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gridwise
from gridwise import checkpoint
from gridwise.deferred_init import deferred_init, is_deferred, materialize_module, materialize_shard, materialize_tensor
from gridwise.errors import CheckpointMismatch, DeferredInitError, PartitionError
from gridwise.testing import workers


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3, bias=False))


def sharded(model):
    world = gridwise.world()
    return fully_shard(model, mesh=DeviceMesh.from_group(world.transport.group_of(world.team), "cpu"))


def assert_trains_like(model, other):
    """Two steps of both, and equal parameters before and after."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    optimisers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, other)]
    for _ in range(2):
        for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
            assert type(a) is type(b) is DTensor, name
            assert torch.equal(a.to_local(), b.to_local()), name
        for each, optimiser in zip((model, other), optimisers, strict=True):
            each(x).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()


@workers(2, transports=("gloo",))
def test_a_sharded_deferred_module_becomes_real():
    model = sharded(deferred_init(build))
    assert is_deferred(model)
    assert is_deferred(model[0].weight)
    with pytest.raises(PartitionError, match="cut already"):
        materialize_module(model, layout=lambda name, shape: None)
    with pytest.raises(DeferredInitError, match="materialize_tensor"):
        materialize_shard(model[0].weight, (slice(0, 1),))
    assert materialize_tensor(model[0].weight) is model[0].weight
    assert not is_deferred(model[0].weight)
    materialize_module(model)
    assert not is_deferred(model)
    assert_trains_like(model, sharded(build()))


@workers(2, transports=("gloo",))
@pytest.mark.parametrize("kind", ["meta", "deferred"])
def test_a_checkpoint_is_loaded_into_the_shards(kind, tmp_path):
    real = sharded(build())
    checkpoint.save(tmp_path, {"model": real})
    if kind == "meta":
        with torch.device("meta"):
            model = sharded(build())
    else:
        model = sharded(deferred_init(build))
    with pytest.raises(CheckpointMismatch, match="deferred"):
        checkpoint.save(tmp_path / "again", {"model": model})
    checkpoint.load(tmp_path, {"model": model})
    assert not is_deferred(model)
    assert_trains_like(model, real)
