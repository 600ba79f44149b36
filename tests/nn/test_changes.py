"""Parameters and attributes that are changed after construction: agreed on by all workers, or refused by all."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils import parametrize

import gridwise
from gridwise import nn
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.testing import workers


def grid(*shape):
    return gridwise.world().create_cartesian_topology_partition(shape)


def block(P, x):
    return x[gridwise.local_slice(P, tuple(x.shape))]


def part(model, place):
    return model.get_submodule(str(place))


def values(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def layers(P):
    """Of every kind that holds something."""
    yield nn.DistributedConv2d(P, 4, 4, 3, padding=1)
    yield nn.DistributedConvTranspose2d(P, 4, 4, 3)
    yield nn.DistributedBatchNorm2d(P, 4)
    yield nn.DistributedInstanceNorm2d(P, 4, affine=True, track_running_stats=True)
    yield nn.DistributedGroupNorm(P, 2, 4)
    yield nn.DistributedLayerNorm(P, (6, 5))
    yield nn.DistributedLinear(P, 5, 4)
    yield nn.DistributedPReLU(P)


@workers(2)
@pytest.mark.parametrize("change", ["float", "half", "requires_grad", "meta"])
def test_what_one_worker_makes_of_parameters_is_refused_by_all(change):
    P = grid(1, 1, 2, 1)
    for layer in layers(P):
        layer.double()
        x = block(P, values(2, 4, 6, 5))
        layer(x)
        if P.rank == 1:
            if change == "requires_grad":
                layer.requires_grad_(False)
            else:
                layer.to("meta") if change == "meta" else getattr(layer, change)()
        with pytest.raises(PartitionError, match=r"not in the same mode|is on meta"):
            layer(x)


@workers(2)
def test_a_buffer_of_another_dtype_on_one_worker_is_refused_by_all():
    P = grid(2, 1, 1, 1)
    for layer in (nn.DistributedBatchNorm2d(P, 4), nn.DistributedCrossEntropyLoss(P, torch.ones(4))):
        x = block(P, values(2, 4, 6, 5).float())
        inputs = (
            (x, torch.zeros(1, 6, 5, dtype=torch.int64)) if isinstance(layer, nn.DistributedCrossEntropyLoss) else (x,)
        )
        layer(*inputs)
        name = "weight" if isinstance(layer, nn.DistributedCrossEntropyLoss) else "running_var"
        if P.rank == 0:
            layer._buffers[name] = layer._buffers[name].double()
        with pytest.raises(
            PartitionError, match=rf"worker 0: {name}: torch.float64.*\n.*worker 1: {name}: torch.float32"
        ):
            layer(*inputs)


@workers(2)
def test_what_one_worker_makes_of_a_models_parameters_is_refused_by_all():
    P = grid(1, 1, 2, 1)
    sequential = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.ReLU(), torch.nn.GroupNorm(2, 4)).double()
    x = block(P, values(2, 4, 6, 5))
    for change in (
        lambda model: model.float(),
        lambda model: part(model, 2).to("meta"),
        lambda model: part(model, 0).weight.requires_grad_(False),
        lambda model: setattr(part(model, 2), "num_groups", 1),
        lambda model: setattr(part(model, 0), "bias", None),
    ):
        model = gridwise.distribute(copy.deepcopy(sequential), P)
        model(x)
        model(x)
        if P.rank == 1:
            change(model)
        with pytest.raises(PartitionError, match=r"not in the same mode|does not do the same"):
            model(x)


@workers(2)
def test_attributes_of_layers_in_a_model_are_honoured():
    P = grid(1, 1, 2, 1)
    sequential = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.ReLU(), torch.nn.GroupNorm(2, 4)).double()
    x, model = values(2, 4, 8, 5), gridwise.distribute(copy.deepcopy(sequential), P)
    for groups, eps in ((2, 1e-5), (1, 1e-5), (4, 0.5), (2, 1e-5)):
        for each in (sequential, model):
            part(each, 2).num_groups, part(each, 2).eps = groups, eps
        torch.testing.assert_close(model(block(P, x)), block(P, sequential(x)))


@workers(2)
def test_attributes_that_decide_what_workers_hold_cannot_be_set():
    P = grid(1, 2, 1, 1)
    conv = nn.DistributedConv2d(P, 4, 4, 3)
    for name, value in (("groups", 2), ("kernel_size", (1, 1)), ("in_channels", 8), ("P_x", grid(2, 1, 1, 1))):
        with pytest.raises(PartitionError, match=rf"`{name}` .* cannot be set to"):
            setattr(conv, name, value)
    conv.groups, conv.P_x = 1, P
    with pytest.raises(PartitionError, match="cannot be deleted"):
        del conv.stride
    assert conv(torch.ones(1, 2, 4, 4)).shape == (1, 2, 2, 2)


@workers(2)
def test_an_attribute_that_one_worker_sets_is_named_by_all():
    P = grid(1, 1, 2, 1)
    pool = nn.DistributedMaxPool2d(P, 2)
    x = block(P, values(1, 1, 8, 4))
    pool(x)
    if P.rank == 1:
        pool.stride = 1
    with pytest.raises(PartitionError, match=r"worker 0: stride: 2\n.*worker 1: stride: 1"):
        pool(x)
    pool.stride = 1
    torch.testing.assert_close(pool(x), block(P, torch.nn.functional.max_pool2d(values(1, 1, 8, 4), 2, 1)))
    assert "stride=1" in repr(pool)


@workers(2)
def test_a_norm_without_a_weight_keeps_its_bias():
    P = grid(1, 1, 2, 1)
    x = values(2, 4, 6, 5)
    for made in (
        (nn.DistributedLayerNorm(P, (6, 5)), torch.nn.LayerNorm((6, 5))),
        (nn.DistributedGroupNorm(P, 2, 4), torch.nn.GroupNorm(2, 4)),
        (nn.DistributedInstanceNorm2d(P, 4, affine=True), torch.nn.InstanceNorm2d(4, affine=True)),
        (nn.DistributedBatchNorm2d(P, 4), torch.nn.BatchNorm2d(4)),
    ):
        for layer in made:
            layer.double()
            torch.nn.init.constant_(layer.bias, 3.0)
            layer.weight = None
        layer, sequential = made
        torch.testing.assert_close(layer(block(P, x)), block(P, sequential(x)))


@workers(2)
def test_a_bias_that_the_layer_was_constructed_without_is_refused():
    P = grid(1, 1, 2, 1)
    for layer in (nn.DistributedConv2d(P, 4, 4, 3, bias=False), nn.DistributedBatchNorm2d(P, 4, affine=False)):
        layer.bias = torch.nn.Parameter(torch.ones(4))
        with pytest.raises(PartitionError, match="has a `bias` that it was constructed without"):
            layer(torch.ones(2, 4, 3, 5))


class Doubled(torch.nn.Module):
    def forward(self, value):
        return value * 2


@workers(2)
def test_cut_parameters_that_something_computes_are_refused_by_every_layer():
    P = grid(1, 2, 1, 1)
    for layer in (
        nn.DistributedBatchNorm2d(P, 4),
        nn.DistributedBatchNorm2d(P, 4).eval(),
        nn.DistributedInstanceNorm2d(P, 4, affine=True),
        nn.DistributedGroupNorm(P, 2, 4),
        nn.DistributedConv2d(P, 4, 4, 3),
        nn.DistributedConvTranspose2d(P, 4, 4, 3),
        nn.DistributedPReLU(P, 4),
        nn.DistributedLayerNorm(P, (4, 6, 5)),
        nn.DistributedLinear(grid(1, 1, 1, 2), 5, 4),
    ):
        parametrize.register_parametrization(layer, "weight", Doubled())
        x = block(layer.P_x, values(2, 4, 6, 5).float())
        with pytest.raises(UnsupportedError, match="`weight` is cut over the workers"):
            layer(x)


@workers(2)
def test_whole_parameters_that_something_computes_are_right_in_batch_norm():
    P = grid(1, 1, 2, 1)
    x, found = values(2, 4, 6, 5), []
    for module in (nn.DistributedBatchNorm2d(P, 4), torch.nn.BatchNorm2d(4)):
        parametrize.register_parametrization(module.double(), "weight", Doubled())
        y = module(block(P, x) if not found else x)
        y.sum().backward()
        found.append((y, module.parametrizations.weight.original.grad))
    torch.testing.assert_close(found[0][0], block(P, found[1][0]))
    torch.testing.assert_close(found[0][1], found[1][1])
