"""Convolutions that make the borders of a block apart: equal to torch's, with the messages of a fetched box."""

from __future__ import annotations

import random

import pytest
import torch
from roads import at_borders

import gridwise
from gridwise import nn
from gridwise.testing import check_equal_to_sequential, workers

LAYERS = {1: (nn.DistributedConv1d, torch.nn.Conv1d), 2: (nn.DistributedConv2d, torch.nn.Conv2d)}
LAYERS[3] = (nn.DistributedConv3d, torch.nn.Conv3d)


def pair(P_x, dims: int, *args, **options):
    distributed, sequential = LAYERS[dims]
    torch.manual_seed(3)
    whole = sequential(*args, **options, dtype=torch.float64)
    layer = distributed(P_x, *args, **options, dtype=torch.float64)
    layer.load_state_dict(whole.state_dict())
    return layer, whole


def grid(dims: int, cut: int) -> gridwise.CartesianPartition:
    shape = [1] * (dims + 2)
    shape[2 + cut] = gridwise.world().size
    return gridwise.world().create_cartesian_topology_partition(shape)


@workers(2, 3)
def test_random_arguments() -> None:
    rng = random.Random(5)
    for _ in range(24):
        dims = rng.choice((1, 2, 2, 3))
        cut, kernel, dilation = rng.randrange(dims), rng.choice((3, 3, 5)), rng.choice((1, 1, 2))
        groups = rng.choice((1, 2))
        options = {
            "padding": dilation * (kernel - 1) // 2,
            "dilation": dilation,
            "groups": groups,
            "bias": rng.random() < 0.7,
            "padding_mode": rng.choice(("zeros", "zeros", "circular")),
        }
        P_x = grid(dims, cut)
        extents = [rng.randint(9, 12) for _ in range(dims)]
        extents[cut] = rng.randint(9, 14) * P_x.size
        layer, whole = pair(P_x, dims, 2, 4, kernel, **options)
        x = torch.randn(2, 2, *extents, dtype=torch.float64)
        with at_borders() as taken:
            check_equal_to_sequential(layer, whole, x, P_x)
        wraps_onto_one = options["padding_mode"] == "circular" and P_x.size == 2
        unlike = options["padding_mode"] == "circular" and dims > 1  # the other dims are wrapped by a copy
        if not wraps_onto_one and not unlike:
            assert min(taken.values()) > 0, (dims, cut, options)


@workers(3)
def test_what_the_other_way_is_for_is_left_to_it() -> None:
    P_x = grid(2, 0)
    for options in ({"stride": 2, "padding": 1}, {"padding": 0}, {"padding": 2}, {"kernel_size": 2, "padding": 1}):
        layer, whole = pair(P_x, 2, 2, 3, **{"kernel_size": 3, **options})
        with at_borders() as taken:
            check_equal_to_sequential(layer, whole, torch.randn(1, 2, 24, 8, dtype=torch.float64), P_x)
        assert max(taken.values()) == 0, options


@workers(2)
@pytest.mark.parametrize("frozen", ["weight", "x", "bias", "nothing"])
def test_what_needs_no_gradient_gets_none(frozen: str) -> None:
    P_x = grid(2, 1)
    layer, whole = pair(P_x, 2, 2, 3, 3, padding=1)
    x = torch.randn(1, 2, 6, 16, dtype=torch.float64)
    own = x[gridwise.local_slice(P_x, x.shape)].clone()
    for tensor, name in (
        (own, "x"),
        (x, "x"),
        *((getattr(m, n), n) for m in (layer, whole) for n in ("weight", "bias")),
    ):
        tensor.requires_grad_(name != frozen)
    with at_borders() as taken:
        layer(own).square().sum().backward()
    whole(x).square().sum().backward()
    assert taken == {"forward": 1, "backward": 1}
    if frozen != "x":
        torch.testing.assert_close(own.grad, x.grad[gridwise.local_slice(P_x, x.shape)])
    for name in ("weight", "bias"):
        mine, expected = getattr(layer, name).grad, getattr(whole, name).grad
        assert (mine is None) == (expected is None)
        if mine is not None:
            torch.testing.assert_close(mine.as_subclass(torch.Tensor), expected)


@workers(2)
def test_gradients_of_gradients_and_no_gradients() -> None:
    P_x = grid(2, 0)
    layer, whole = pair(P_x, 2, 2, 3, 3, padding=1)
    x = torch.randn(1, 2, 12, 6, dtype=torch.float64)
    own = x[gridwise.local_slice(P_x, x.shape)].clone().requires_grad_()
    x.requires_grad_()
    with at_borders():
        (of_own,) = torch.autograd.grad(layer(own).pow(3).sum(), own, create_graph=True)
        of_own.square().sum().backward()
        with torch.no_grad():
            y = layer(own)
    (of_x,) = torch.autograd.grad(whole(x).pow(3).sum(), x, create_graph=True)
    of_x.square().sum().backward()
    torch.testing.assert_close(own.grad, x.grad[gridwise.local_slice(P_x, x.shape)])
    torch.testing.assert_close(y, whole(x)[gridwise.local_slice(P_x, (1, 3, 12, 6))].detach())
