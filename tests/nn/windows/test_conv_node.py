"""A convolution as one node of autograd is the convolution, and its workers stay together."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from equality import Case, check_all, check_second_order
from roads import in_steps, keeping
from test_steps import LAYERS as IN_STEPS

import gridwise
from gridwise import nn
from gridwise.errors import MismatchError, PartitionError
from gridwise.testing import workers

LAYERS = IN_STEPS | {
    "even": Case("Conv2d", (1, 1, 2, 2), (2, 3, 12, 11), (3, 4, (4, 2)), {"padding": (1, 2), "stride": 2}),
    "channels": Case("Conv2d", (1, 2, 2, 1), (2, 3, 12, 7), (3, 5, 3), {"padding": 1}),
    "batch alone": Case("Conv2d", (3, 1, 1, 1), (4, 3, 6, 7), (3, 4, 3), {"padding": 1}),
    "nothing is fetched": Case("Conv2d", (1, 1, 2, 1), (2, 3, 12, 7), (3, 4, 1), {}),
    "transposed": Case(
        "ConvTranspose2d", (1, 1, 2, 2), (2, 3, 6, 5), (3, 4, 3), {"stride": 2, "padding": 1, "output_padding": 1}
    ),
    "transposed, cropped": Case("ConvTranspose2d", (1, 1, 4, 1), (2, 3, 9, 5), (3, 4, 3), {"stride": 2, "padding": 1}),
    "transposed, channels": Case("ConvTranspose1d", (1, 2, 2), (2, 3, 7), (3, 5, 4), {"stride": 2, "padding": 1}),
    "transposed, groups": Case("ConvTranspose2d", (2, 1, 2, 1), (3, 4, 6, 5), (4, 6, 3), {"groups": 2, "bias": False}),
    "conv3d": Case("Conv3d", (1, 1, 2, 1, 2), (1, 2, 6, 4, 7), (2, 3, 3), {"padding": 1}),
}


def layer_and_block(grid=(1, 1, 2, 1), **options):
    P_x = gridwise.world().create_cartesian_topology_partition(list(grid))
    torch.manual_seed(0)
    return nn.DistributedConv2d(P_x, 3, 4, 3, padding=1, **options), torch.randn(2, 3, 6, 5, requires_grad=True)


@workers(4, transports=("mpi",))
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("large", [False, True])
def test_equal_to_torch_in_first_and_second_order(name, large):
    with keeping(nothing=large):
        assert check_all([LAYERS[name]], 4) == ["equal"]
        check_second_order(LAYERS[name])


@workers(2)
def test_workers_must_not_differ_in_how_they_convolve():
    layer, x = layer_and_block()
    expected = layer(x)
    with (
        torch.autocast("cpu", enabled=gridwise.world().rank == 0),
        pytest.raises(PartitionError, match="not in the same mode"),
    ):
        layer(x)
    assert torch.equal(layer(x), expected)


@workers(2)
@pytest.mark.parametrize("transposed", [False, True])
def test_it_is_one_node_between_the_output_and_its_leaves(transposed):
    layer, x = layer_and_block()
    y = nn.DistributedConvTranspose2d(layer.P_x, 3, 4, 3, stride=2, padding=1)(x) if transposed else layer(x)
    node = y.grad_fn
    assert type(node).__name__ == "_ConvolvedBackward"
    assert {type(following).__name__ for following, _ in node.next_functions if following} == {"AccumulateGrad"}


@workers(2)
@pytest.mark.parametrize("frozen", ["weight", "bias", "x", "weight and bias"])
def test_what_needs_no_gradient_gets_none(frozen):
    layer, x = layer_and_block()
    whole = torch.nn.Conv2d(3, 4, 3, padding=1)
    whole.load_state_dict({name: value.detach().as_subclass(torch.Tensor) for name, value in layer.named_parameters()})
    for part in (layer, whole):
        part.weight.requires_grad_("weight" not in frozen)
        part.bias.requires_grad_("bias" not in frozen)
    x.requires_grad_("x" not in frozen)
    P_x, everything = layer.P_x, torch.cat([x, x], 2).detach().requires_grad_(x.requires_grad)
    layer(x).pow(2).sum().backward()
    whole(everything).pow(2).sum().backward()
    for mine, theirs in ((layer.weight.grad, whole.weight.grad), (layer.bias.grad, whole.bias.grad)):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    assert (x.grad is None) == (everything.grad is None)
    if x.grad is not None:
        assert torch.allclose(x.grad, everything.grad.chunk(2, 2)[P_x.rank], rtol=1e-4, atol=1e-4)


@workers(2)
def test_where_nothing_is_sent_a_worker_may_go_back_alone():
    layer, x = layer_and_block((2, 1, 1, 1))
    layer.requires_grad_(False)
    y = layer(x)
    if gridwise.world().rank == 0:
        y.sum().backward()
        assert x.grad is not None


@workers(2)
def test_a_worker_on_another_road_is_noticed():
    layer, x = layer_and_block()
    with in_steps() if gridwise.world().rank == 0 else nullcontext():
        y = layer(x)
    with pytest.raises(MismatchError, match="different operators"):
        y.sum().backward()


@workers(2)
def test_an_input_that_was_changed_in_place_is_noticed():
    layer, x = layer_and_block()
    x = x * 1
    y = layer(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@workers(2)
def test_buffers_of_a_first_call_in_inference_mode_serve_later_ones():
    layer, x = layer_and_block()
    with torch.inference_mode():
        first = layer(x.detach())
    y = layer(x)
    y.sum().backward()
    assert torch.equal(first, y.detach())


@workers(2)
def test_results_of_a_call_outlive_the_next():
    layer, x = layer_and_block()
    y = layer(x)
    kept = y.detach().clone()
    z = layer(torch.zeros_like(x) + 2)
    (first,) = torch.autograd.grad(y.sum(), x)
    copy = first.clone()
    z.sum().backward()
    assert torch.equal(y, kept)
    assert torch.equal(first, copy)
