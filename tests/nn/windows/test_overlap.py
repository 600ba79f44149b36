"""Computing the interior while halos arrive changes no number: outputs and gradients, of first and of second order."""

from __future__ import annotations

import importlib
from contextlib import contextmanager

import pytest
import torch
from equality import Case, check_all, check_second_order
from random_layers import larger, random_case
from roads import in_steps

import gridwise
from gridwise import nn
from gridwise.errors import PartitionError
from gridwise.testing import workers

LAYERS = {
    "conv1d": ("Conv1d", (1, 1, 2), (2, 3, 12), (3, 4, 3), {"padding": 1}),
    "conv2d, rows": ("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 3), {"padding": 1}),
    "conv2d, both": ("Conv2d", (1, 1, 2, 2), (2, 3, 12, 11), (3, 4, 3), {"padding": 1}),
    "conv2d, even, stride, dilation": (
        "Conv2d", (1, 1, 2, 1), (2, 3, 24, 11), (3, 4, (4, 2)), {"padding": (1, 2), "stride": 2, "dilation": (1, 2)},
    ),
    "conv2d, circular": ("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 3), {"padding": 1, "padding_mode": "circular"}),
    "conv2d, groups": ("Conv2d", (1, 1, 2, 1), (2, 4, 12, 7), (4, 6, 3), {"padding": 1, "groups": 2}),
    "conv3d": ("Conv3d", (1, 1, 2, 1, 2), (1, 2, 10, 4, 9), (2, 3, 3), {"padding": 1}),
    "max pool": ("MaxPool2d", (1, 1, 2, 1), (2, 3, 13, 8), (3, 2, 1), {}),
    "max pool 3d": ("MaxPool3d", (1, 1, 2, 1, 1), (1, 2, 12, 5, 6), (3, 1, 1), {}),
    "average pool": ("AvgPool2d", (1, 1, 2, 2), (2, 3, 13, 12), (3, 1, 1), {"count_include_pad": False}),
    "average pool 1d": ("AvgPool1d", (1, 1, 2), (2, 3, 13), (3, 1, 1), {}),
}  # fmt: skip


@contextmanager
def overlapping(least_share: float = 0.0):
    """Overlap on, wherever there is any interior; gives the list of calls that did."""
    module = importlib.import_module("gridwise.nn.overlap")
    before, module.LEAST_SHARE = module.LEAST_SHARE, least_share
    begin, begun = module.Parts.begin, []
    module.Parts.begin = lambda parts, *args: begun.append(parts) or begin(parts, *args)
    try:
        with nn.overlap(True):
            yield begun
    finally:
        module.LEAST_SHARE, module.Parts.begin = before, begin


def larger_cases(seeds, count):
    kinds = ("Conv1", "Conv2", "Conv3", "MaxPool", "AvgPool")
    return [larger(case) for case in (random_case(seed, count) for seed in seeds) if case.layer.startswith(kinds)]


def case(name):
    layer, P_x, shape, args, kwargs = LAYERS[name]
    return Case(layer, P_x, shape, args, kwargs)


@workers(1, 2, 3, 4, transports=("mpi",))
def test_random_layers(gridwise_setting):
    count = gridwise_setting[1]
    with overlapping() as begun:
        check_all([random_case(seed, count) for seed in range(30)], count)
        outcomes = check_all(larger_cases(range(60), count), count)
    assert outcomes.count("equal") > 15
    assert len(begun) > 4 or gridwise.world().rank > 1 or count == 1


@workers(2, 4, transports=("gloo",))
def test_random_layers_over_gloo(gridwise_setting):
    count = gridwise_setting[1]
    with overlapping():
        check_all(larger_cases(range(500, 540), count), count)


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
@pytest.mark.parametrize("hundred", range(5))
def test_many_random_layers(gridwise_setting, hundred):
    count = gridwise_setting[1]
    with overlapping():
        check_all(larger_cases(range(5000 + 200 * hundred, 5200 + 200 * hundred), count), count)


@workers(4)
@pytest.mark.parametrize("name", LAYERS)
def test_equal_to_torch_in_first_and_second_order(name):
    with overlapping() as begun:
        check_all([case(name)], 4)
        check_second_order(case(name))
    assert len(begun) == 2 or gridwise.world().rank > 1


@workers(2)
def test_the_interior_is_made_from_the_block_itself():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    layer = nn.DistributedConv2d(P_x, 3, 4, 3, padding=1)
    x = torch.randn(1, 3, 8, 9)
    sizes = []
    convolve = layer._in_groups

    def watched(x, *rest):
        sizes.append(tuple(x.shape[2:]))
        return convolve(x, *rest)

    layer._in_groups = watched
    with in_steps():
        layer(x)
    assert sizes == [(10, 9)]
    with overlapping():
        layer._distdl_is_setup = False
        y = layer(x)
    assert sizes[1:] == [(8, 9), (3, 9), (3, 9)]
    assert torch.allclose(y, layer(x), rtol=1e-5, atol=1e-6)


@workers(2)
def test_workers_must_not_differ_in_how_they_convolve():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    x = torch.randn(1, 3, 12, 9, requires_grad=True)
    layer = nn.DistributedConv2d(P_x, 3, 4, 3, padding=1)
    expected = layer(x)
    for switch in (nn.overlap, lambda on: torch.autocast("cpu", enabled=on)):
        with switch(gridwise.world().rank == 0), pytest.raises(PartitionError, match="not in the same mode"):
            layer(x)
    assert torch.equal(layer(x), expected)


@workers(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_and_channels_last(dtype):
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    layer = nn.DistributedConv2d(P_x, 4, 4, 3, padding=1).to(dtype)
    x = torch.randn(2, 4, 12, 9).to(dtype, memory_format=torch.channels_last).requires_grad_()
    results = []
    for enabled in (False, True):
        with nn.overlap(enabled):
            y = layer(x)
            results.append([y, *torch.autograd.grad(y.float().sum(), [x, layer.weight, layer.bias])])
    assert results[0][0].is_contiguous(memory_format=torch.channels_last)
    assert results[1][0].is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=2e-2, atol=2e-2)


@workers(2)
def test_without_gradients_and_back_again():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    layer, x = nn.DistributedConv2d(P_x, 3, 4, 3, padding=1), torch.randn(1, 3, 12, 9)
    with overlapping():
        y = layer(x)
        y.sum().backward(retain_graph=True)
        first = layer.weight.grad.clone()
        y.sum().backward()
        assert torch.allclose(layer.weight.grad, 2 * first)
        with torch.no_grad():
            assert torch.equal(layer(x), y)


@workers(2, 4)
def test_a_whole_model_trains_as_without():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    runs = []
    for enabled in (False, True):
        torch.manual_seed(0)
        sequential = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3, padding=1),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(3, 2, 1),
            torch.nn.Conv2d(4, 4, 5, padding=2, padding_mode="circular"),
            torch.nn.Upsample(scale_factor=2),
            torch.nn.AvgPool2d(3, 1, 1),
        ).double()
        model, x = gridwise.distribute(sequential, P_x), torch.randn(2, 2, 16, 12, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with nn.overlap(enabled):
            for _ in range(3):
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
        runs.append([p.detach() for p in model.parameters()])
    for one, other in zip(*runs, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@workers(2)
def test_on_a_device():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    layer, x = nn.DistributedConv2d(P_x, 3, 4, 3, padding=1, dtype=torch.float64), torch.randn(1, 3, 12, 9).double()
    results = []
    for device, enabled in (("cpu", False), ("cuda", True)):
        layer, block = layer.to(device), x.to(device).detach().requires_grad_()
        with nn.overlap(enabled):
            y = layer(block)
            results.append([y, *torch.autograd.grad(y.pow(2).sum(), [block, layer.weight])])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other.cpu(), rtol=1e-9, atol=1e-9)
