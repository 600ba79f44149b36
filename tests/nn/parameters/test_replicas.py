"""Replicas that have parted are named; those that have not pass."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
from test_changes import block, grid, layers, part, values

import gridwise
from gridwise import nn
from gridwise.errors import PartitionError
from gridwise.nn.parameters import replicas
from gridwise.testing import workers


@workers(1, 3)
def test_replicas_are_compared() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([world.size, 1])
    model = torch.nn.Sequential(gridwise.nn.DistributedLinear(P_x, 3, 4), gridwise.nn.DistributedBatchNorm(P_x, 4))
    gridwise.check_replicas(model)
    if world.size == 1:
        return
    with torch.no_grad():
        model[1].running_var[2] += float(world.rank == 2)
    with pytest.raises(
        gridwise.errors.PartitionError, match=r"workers 0, 1: 1\.running_var has .*\n.*worker 2: 1\.running_var"
    ):
        gridwise.check_replicas(model)


@workers(2)
def test_blocks_are_not_replicas() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 2])
    model = gridwise.nn.DistributedLinear(P_x, 3, 4)
    with torch.no_grad():
        model.weight += gridwise.world().rank
    gridwise.check_replicas(model)
    with pytest.raises(gridwise.errors.MismatchError, match="different names"):
        gridwise.check_replicas(torch.nn.Linear(2, 2, bias=gridwise.world().rank == 0))


# Compared by layers and models themselves


@workers(2)
def test_a_weight_that_one_worker_writes_before_the_first_call_is_named_by_all():
    P = grid(2, 1, 1, 1)
    for layer in layers(P):
        with torch.no_grad():
            layer.weight.add_(P.rank)
        x = block(P, values(2, 4, 6, 5).float())
        for _ in range(2):
            with pytest.raises(
                PartitionError, match=r"different replicas of `weight`\.\n.*worker 0: weight has checksum"
            ):
                layer(x)
        with torch.no_grad():
            layer.weight.sub_(P.rank)
        layer.weight.data.round_()
        layer(x)


@workers(2)
def test_replicas_that_were_loaded_or_assigned_are_compared():
    P = grid(2, 1, 1, 1)
    x = block(P, values(2, 4, 6, 5).float())
    for change in (
        lambda layer: layer.load_state_dict({**layer.state_dict(), "bias": torch.full((4,), float(P.rank))}),
        lambda layer: setattr(layer, "bias", torch.nn.Parameter(torch.full((4,), float(P.rank)))),
        lambda layer: P.rank == 1 and setattr(layer, "bias", torch.nn.Parameter(torch.ones(4))),
    ):
        layer = nn.DistributedConv2d(P, 4, 4, 3)
        layer(x)
        change(layer)
        with pytest.raises(PartitionError, match="different replicas of `bias`"):
            layer(x)
        layer.load_state_dict(
            torch.nn.Conv2d(4, 4, 3).state_dict() | {"bias": torch.ones(4), "weight": torch.ones(4, 4, 3, 3)}
        )
        layer(x)


@workers(2)
def test_replicas_of_a_model_are_compared_at_first_and_after_loading():
    P = grid(2, 1, 1, 1)
    x = block(P, values(2, 4, 6, 5).float())
    torch.manual_seed(0)
    sequential = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4))
    for is_called_before, change in (
        (False, lambda model: part(model, 0).bias.data.add_(P.rank)),
        (True, lambda model: model.load_state_dict({**model.state_dict(), "0.bias": torch.full((4,), float(P.rank))})),
        (True, lambda model: setattr(part(model, 0), "bias", torch.nn.Parameter(torch.full((4,), float(P.rank))))),
    ):
        model = gridwise.distribute(copy.deepcopy(sequential), P)
        if is_called_before:
            model(x)
        change(model)
        with pytest.raises(PartitionError, match=r"different replicas of `0\.bias`"):
            model(x)
        model.load_state_dict(sequential.state_dict())
        model(x)


@workers(2)
def test_replicas_are_not_compared_for_each_new_shape(monkeypatch):
    P = grid(2, 1, 1, 1)
    compared = []
    whole = replicas.checksum
    monkeypatch.setattr(replicas, "checksum", lambda value: compared.append(1) or whole(value))
    layer = nn.DistributedConv2d(P, 4, 4, 3)
    for extent in (4, 5, 6, 5):
        layer(torch.ones(1, 4, extent, 5))
    assert len(compared) == 2
    copy.deepcopy(layer)(torch.ones(1, 4, 4, 5))
    assert len(compared) == 4


@contextmanager
def checked_every(n):
    before, replicas._every = replicas._every, n
    try:
        yield
    finally:
        replicas._every = before


@workers(2)
def test_replicas_are_compared_in_every_nth_call_if_asked_for():
    P = grid(2, 1, 1, 1)
    x = block(P, values(2, 4, 6, 5).float())
    torch.manual_seed(0)
    model = gridwise.distribute(torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3)), P)
    for called, name in ((nn.DistributedConv2d(P, 4, 4, 3), "bias"), (model, r"0\.bias")):
        with checked_every(3):
            called(x)
            dict(called.named_parameters())[name.replace("\\", "")].data.add_(P.rank)
            called(x)
            with pytest.raises(PartitionError, match=f"different replicas of `{name}`"):
                called(x)


@workers(2)
def test_workers_that_compare_at_different_calls_are_told():
    P = grid(2, 1, 1, 1)
    with (
        checked_every(P.rank + 1),
        pytest.raises(
            PartitionError, match=r"worker 0: GRIDWISE_CHECK_REPLICAS: 1\n.*worker 1: GRIDWISE_CHECK_REPLICAS: 2"
        ),
    ):
        nn.DistributedConv2d(P, 4, 4, 3)(torch.ones(1, 4, 4, 4))
