"""A convolution of a large block, made of steps, is the convolution of a small one: in all that autograd can do."""

from __future__ import annotations

import pytest
import torch
from equality import Case, check_all, check_second_order
from random_layers import larger, random_case
from roads import in_steps
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise import nn
from gridwise.errors import UnsupportedError
from gridwise.testing import workers

LAYERS = {
    "conv1d": Case("Conv1d", (1, 1, 2), (2, 3, 12), (3, 4, 3), {"padding": 1}),
    "rows": Case("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 3), {"padding": 1}),
    "both": Case("Conv2d", (1, 1, 2, 2), (2, 3, 12, 12), (3, 4, 3), {"padding": 1}),
    "a wide halo": Case("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 7), {"padding": 3}),
    "halos that meet": Case("Conv2d", (1, 1, 4, 1), (2, 3, 8, 7), (3, 4, 5), {"padding": 2}),
    "dilation": Case("Conv2d", (1, 1, 2, 2), (2, 3, 12, 14), (3, 4, 3), {"padding": 2, "dilation": 2}),
    "stride": Case("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 3), {"padding": 1, "stride": (2, 1)}),
    "groups": Case("Conv2d", (1, 1, 2, 1), (2, 4, 12, 7), (4, 6, 3), {"padding": 1, "groups": 2}),
    "no bias": Case("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 3), {"padding": 1, "bias": False}),
    "circular": Case("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 3), {"padding": 1, "padding_mode": "circular"}),
    "same": Case("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 3), {"padding": "same"}),
    "batch too": Case("Conv2d", (2, 1, 2, 1), (4, 3, 12, 7), (3, 4, 3), {"padding": 1}),
    "a dim without padding": Case("Conv2d", (1, 1, 1, 2), (2, 3, 12, 8), (3, 4, (2, 3)), {"padding": (0, 1)}),
    "conv3d, not in depth": Case("Conv3d", (1, 1, 1, 2, 2), (1, 2, 4, 8, 8), (2, 3, (1, 3, 3)), {"padding": (0, 1, 1)}),
}


@workers(4)
@pytest.mark.parametrize("name", LAYERS)
def test_equal_to_torch_in_first_and_second_order(name):
    with in_steps():
        assert check_all([LAYERS[name]], 4) == ["equal"]
        check_second_order(LAYERS[name])


def random_convolutions(seeds, count):
    cases = [random_case(seed, count) for seed in seeds]
    return [
        each for case in cases if case.layer.startswith(("Conv1", "Conv2", "Conv3")) for each in (case, larger(case))
    ]


@workers(1, 2, 3, 4, transports=("mpi",))
def test_random_layers(gridwise_setting):
    count = gridwise_setting[1]
    with in_steps():
        outcomes = check_all(random_convolutions(range(2000, 2120), count), count)
    assert outcomes.count("equal") > 20


@workers(2, 4, transports=("gloo",))
def test_random_layers_over_gloo(gridwise_setting):
    with in_steps():
        check_all(random_convolutions(range(2200, 2260), gridwise_setting[1]), gridwise_setting[1])


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
@pytest.mark.parametrize("hundred", range(5))
def test_many_random_layers(gridwise_setting, hundred):
    count = gridwise_setting[1]
    with in_steps():
        check_all(random_convolutions(range(6000 + 200 * hundred, 6200 + 200 * hundred), count), count)


def layer_and_block(size=12):
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    torch.manual_seed(0)
    layer = nn.DistributedConv2d(P_x, 3, 4, 3, padding=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(gridwise.world().rank)
    return layer, torch.randn(2, 3, size, 9, dtype=torch.float64, generator=generator).requires_grad_()


def at_once_and_in_steps(run):
    """What `run(layer, x)` returns with one node of autograd, and with several."""
    at_once = run(*layer_and_block())
    with in_steps():
        return at_once, run(*layer_and_block())


def close(one, other):
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(one, other, strict=True))


@workers(2, 3)
@pytest.mark.parametrize("reentrant", [False, True, None])
def test_several_backwards_and_checkpoints(reentrant):
    def run(layer, x):
        y = layer(x) if reentrant is None else checkpoint(layer, x, use_reentrant=reentrant)
        if reentrant is None:
            y.pow(2).sum().backward(retain_graph=True)
        y.pow(2).sum().backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    close(*at_once_and_in_steps(run))


@workers(2)
def test_the_gradient_given_to_backward_is_not_changed():
    def run(layer, x):
        y = layer(x)
        given = torch.ones_like(y)
        found = torch.autograd.grad(y, [x, layer.weight, layer.bias], given)
        assert torch.equal(given, torch.ones_like(given))
        return found

    close(*at_once_and_in_steps(run))


@workers(2)
def test_data_frozen_weights_no_grad_and_hooks():
    def data(layer, x):
        layer(x.detach()).pow(2).sum().backward()
        return [p.grad for p in layer.parameters()]

    def frozen(layer, x):
        return torch.autograd.grad(layer.requires_grad_(False)(x).pow(2).sum(), x)

    def hooked(layer, x):
        with torch.autograd.graph.save_on_cpu():
            y = layer(x)
        return torch.autograd.grad(y.pow(2).sum(), [x, *layer.parameters()])

    def nothing(layer, x):
        with torch.no_grad():
            y = layer(x)
        assert y.grad_fn is None
        return [y]

    for run in (data, frozen, hooked, nothing):
        close(*at_once_and_in_steps(run))


@workers(2)
def test_what_messages_cannot_follow_is_refused():
    layer, x = layer_and_block()
    with in_steps(), pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda x: layer(x).sum())(x.detach())
    with in_steps(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        with pytest.raises(UnsupportedError, match="forward-mode"):
            layer(dual)
    assert layer(x).shape == (2, 4, 12, 9)


@workers(2)
def test_an_output_changed_in_place():
    def run(layer, x):
        y = torch.nn.functional.relu_(layer(x))
        return [y, *torch.autograd.grad(y.pow(2).sum(), [x, layer.weight])]

    close(*at_once_and_in_steps(run))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@workers(2)
def test_on_a_device():
    def run(layer, x):
        y = layer.cuda()(x.cuda())
        return [part.cpu() for part in (y, *torch.autograd.grad(y.pow(2).sum(), [x, layer.weight]))]

    close(*at_once_and_in_steps(run))
