"""What is kept of a fetched block for backward gives the same gradients as the block, under everything autograd can do."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from equality import Case, check_all, check_second_order
from random_layers import random_case
from roads import in_steps, keeping
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise import nn
from gridwise.testing import workers

IMAGE = (2, 4, 12, 10)
LAYERS = {
    "conv": lambda P: nn.DistributedConv2d(P, 4, 6, 3, padding=1, dtype=torch.float64),
    "conv, reflect": lambda P: nn.DistributedConv2d(P, 4, 6, 3, padding=1, padding_mode="reflect", dtype=torch.float64),
    "transposed": lambda P: nn.DistributedConvTranspose2d(P, 4, 6, 3, stride=2, dtype=torch.float64),
    "max pool": lambda P: nn.DistributedMaxPool2d(P, 3, 1, 1),
    "average pool": lambda P: nn.DistributedAvgPool2d(P, 3, 1, 1),
}


@contextmanager
def replacing(enabled: bool = True):
    """Blocks of any size are replaced, or none."""
    with in_steps(), keeping(nothing=enabled):
        yield


@contextmanager
def in_one_node(enabled: bool = True):
    """The same in convolutions that are one node of autograd."""
    with keeping(nothing=enabled):
        yield


def by_rows():
    return gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])


def block():
    generator = torch.Generator().manual_seed(gridwise.world().rank)
    return torch.randn(IMAGE, dtype=torch.float64, generator=generator).requires_grad_()


def both(name, run, roads=(replacing, in_one_node)):
    """What `run(layer, x)` returns with fetched blocks kept, and with all of them replaced."""
    results = ([], [])
    for road in roads:
        for enabled in (False, True):
            torch.manual_seed(0)
            with road(enabled):
                results[enabled].extend(run(LAYERS[name](by_rows()), block()))
    return results


def same(one, other):
    for a, b in zip(one, other, strict=True):
        rounding = 4 * torch.finfo(a.dtype).eps  # cuDNN adds in any order
        assert torch.equal(a, b) or (a.is_cuda and torch.allclose(a, b, rtol=rounding, atol=max(rounding, 1e-2)))


def gradients(layer, x):
    return torch.autograd.grad(layer(x).pow(2).sum(), [x, *layer.parameters()])


@workers(2, 3, 4, transports=("mpi",))
def test_random_layers_with_every_block_replaced(gridwise_setting):
    count = gridwise_setting[1]
    with replacing():
        check_all([random_case(seed, count) for seed in range(200, 230)], count)


@workers(2, 4)
@pytest.mark.parametrize("name", LAYERS)
def test_several_backwards(name):
    def run(layer, x):
        y = layer(x).pow(2).sum()
        first = torch.autograd.grad(y, x, retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()
        return [*first, x.grad, *(p.grad for p in layer.parameters())]

    same(*both(name, run))


@workers(2, 4)
def test_second_order():
    with replacing():
        for P_x in ((1, 1, 2, 1), (1, 1, 1, 2)):
            check_second_order(Case("Conv2d", P_x, (2, 3, 9, 8), (3, 4, 3), {"padding": 1}))
            check_second_order(Case("Conv2d", P_x, (2, 3, 9, 8), (3, 4, 3), {"padding": 1, "padding_mode": "reflect"}))
            check_second_order(Case("ConvTranspose2d", P_x, (2, 3, 9, 8), (3, 4, 3), {"stride": 2}))
            check_second_order(Case("MaxPool2d", P_x, (2, 3, 9, 8), (3, 2, 1)))
            check_second_order(Case("AvgPool2d", P_x, (2, 3, 9, 8), (3, 2, 1)))


@workers(2)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_do_not_read_more_than_is_kept(name):
    torch.use_deterministic_algorithms(True)  # fills new memory with nan
    try:
        same(*both(name, gradients))
    finally:
        torch.use_deterministic_algorithms(False)


@workers(2)
@pytest.mark.parametrize("name", LAYERS)
def test_hooks_of_the_user_decide(name):
    packed = []

    def run(layer, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
            y = layer(x).pow(2).sum()
        return torch.autograd.grad(y, [x, *layer.parameters()])

    kept, replaced = both(name, run, [replacing])
    same(kept, replaced)
    half = len(packed) // 2
    assert packed[:half] == packed[half:] != []
    with replacing():
        with torch.autograd.graph.save_on_cpu():
            layer, x = LAYERS[name](by_rows()), block()
            y = layer(x).pow(2).sum()
        y.backward()
        assert x.grad is not None


@workers(2)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(name, reentrant):
    def run(layer, x):
        y = checkpoint(layer, x, use_reentrant=reentrant)
        y.pow(2).sum().backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    same(*both(name, run))


@workers(2)
def test_a_block_changed_in_place_is_noticed():
    x = block()
    layer = LAYERS["conv"](by_rows())
    with replacing():
        hidden = x * 1
        y = layer(hidden).sum()
        hidden.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
        weight_changed = layer(x * 1).sum()
        with torch.no_grad():
            layer.weight.add_(1)
        with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
            weight_changed.backward()


@workers(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_halves_and_channels_last(dtype, memory_format):
    def run(layer, x):
        x = x.detach().to(dtype, memory_format=memory_format).requires_grad_()
        return gradients(layer.to(dtype), x)

    for name in LAYERS:
        same(*both(name, run))


@workers(2)
def test_complex_numbers():
    def run(layer, x):
        layer, x = layer.to(torch.complex128), torch.complex(x.detach(), x.detach().flip(3)).requires_grad_()
        return torch.autograd.grad(layer(x).abs().pow(2).sum(), [x, *layer.parameters()])

    for name in ("conv", "conv, reflect", "transposed"):
        same(*both(name, run))


@workers(2)
def test_autocast_and_input_without_gradient():
    def mixed(layer, x):
        with torch.autocast(torch.get_default_device().type, torch.bfloat16):
            return gradients(layer.float(), x.detach().float().requires_grad_())

    def data(layer, x):
        layer(x.detach()).pow(2).sum().backward()
        return [p.grad for p in layer.parameters()]

    same(*both("conv", mixed))
    same(*both("conv", data))
    with replacing(), torch.no_grad():
        assert LAYERS["conv"](by_rows())(block()).grad_fn is None


@workers(2)
def test_a_plan_that_changes_between_forward_and_backward():
    def run(layer, x):
        y = layer(x).pow(2).sum()
        z = layer(x[:, :, :7]).pow(2).sum()
        return torch.autograd.grad(y + z, [x, *layer.parameters()])

    same(*both("conv, reflect", run))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@workers(2)
@pytest.mark.parametrize("name", LAYERS)
def test_on_a_device(name):
    def run(layer, x):
        found = gradients(layer.cuda(), x.detach().cuda().requires_grad_())
        return [gradient.cpu() for gradient in found]

    for one, other in zip(*both(name, run), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)
