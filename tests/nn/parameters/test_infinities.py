"""Infinities in inputs, weights and gradients: infinite and nan exactly where torch's results are, forward and backward."""

from __future__ import annotations

import math
import random

import pytest
import torch
from roads import in_steps, keeping
from torch import Tensor

import gridwise
from gridwise import nn
from gridwise.testing import workers


def differ(mine: Tensor, whole: Tensor, what: str) -> list[str]:
    """One line unless they are nan and infinite at the same places, and close elsewhere.

    On CUDA only what is finite in both is compared: which zeros are multiplied by an infinity depends on the kernel that
    torch picks for the shape of a block.
    """
    close = 1e-4 if mine.dtype == torch.float32 else 1e-8
    if mine.is_cuda:
        finite = mine.isfinite() & whole.isfinite()
        mine, whole = mine[finite], whole[finite]
    try:
        torch.testing.assert_close(
            mine.detach().as_subclass(Tensor), whole.detach(), rtol=close, atol=close, equal_nan=True
        )
    except AssertionError as error:
        return [f"{what}: {' '.join(str(error).split())}"]
    return []


def with_infinities(x: Tensor, count: int, seed: int) -> Tensor:
    rng = random.Random(seed)
    for _ in range(count):
        x.view(-1)[rng.randrange(x.numel())] = rng.choice((math.inf, math.inf, -math.inf))
    return x


def check(layer, sequential, x: Tensor, infinite: str, case: str) -> list[str]:
    """What differs with infinities in `x`, in `weight` or in the `cotangent`; raised at the end only, by the caller."""
    P_x, seed = layer.P_x, len(case)
    for name, whole in sequential.named_parameters():
        if infinite == "weight" and name == "weight":
            with_infinities(whole.data, 2, seed)
    layer.load_state_dict(sequential.state_dict())
    x = with_infinities(x, 3, seed) if infinite == "x" else x
    own = x[gridwise.local_slice(P_x, x.shape)].clone().requires_grad_()
    x.requires_grad_()
    y, expected = layer(own), sequential(x)
    block = gridwise.local_slice(P_x, expected.shape)
    wrong = differ(y, expected[block], "output")
    dy = torch.randn(expected.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    dy = with_infinities(dy, 3, seed) if infinite == "cotangent" else dy
    y.backward(dy[block])
    expected.backward(dy)
    wrong += differ(own.grad, x.grad[gridwise.local_slice(P_x, x.shape)], "input gradient")
    for name, whole in sequential.named_parameters():
        part = getattr(layer, name)
        wrong += differ(part.grad, whole.grad if part.block is None else whole.grad[part.block.slices], name)
    return [f"{case}, infinite {infinite}: {line}" for line in wrong]


@workers(2, 4)
@pytest.mark.parametrize("infinite", ["x", "weight", "cotangent"])
def test_convolutions_that_keep_their_padded_blocks_and_that_do_not(infinite):
    world, wrong = gridwise.world(), []
    for kept, space in ((True, [world.size, 1]), (True, [2, world.size // 2]), (False, [world.size, 1])):
        P_x = world.create_cartesian_topology_partition([1, 1, *space])
        for options in ({"padding": 1}, {"padding": 1, "padding_mode": "circular"}, {"stride": 2}, {"bias": False}):
            torch.manual_seed(0)
            sequential = torch.nn.Conv2d(2, 3, 3, **options).double()
            layer = nn.DistributedConv2d(P_x, 2, 3, 3, **options, dtype=torch.float64)
            x = torch.randn(2, 2, 12, 12, dtype=torch.float64)
            with keeping(nothing=not kept):
                wrong += check(layer, sequential, x, infinite, f"kept {kept}, on {space}, {options}")
    assert not wrong, "\n".join(wrong)


@workers(2)
@pytest.mark.parametrize("infinite", ["x", "weight", "cotangent"])
def test_convolutions_in_steps_and_transposed_ones(infinite):
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    with in_steps():
        layer = nn.DistributedConv2d(P_x, 2, 3, 3, padding=1, dtype=torch.float64)
        sequential = torch.nn.Conv2d(2, 3, 3, padding=1).double()
        wrong = check(layer, sequential, torch.randn(2, 2, 24, 6, dtype=torch.float64), infinite, "in steps")
    if infinite != "weight":  # which docs/layers.md names: rows that are cropped have a gradient of zero
        layer = nn.DistributedConvTranspose2d(P_x, 2, 3, 3, 2, 1, dtype=torch.float64)
        sequential = torch.nn.ConvTranspose2d(2, 3, 3, 2, 1).double()
        wrong += check(layer, sequential, torch.randn(2, 2, 9, 6, dtype=torch.float64), infinite, "transposed")
    assert not wrong, "\n".join(wrong)


MODES = {
    "linear": ((1, 2, 13), [{"scale_factor": 2}, {"scale_factor": 1.5}, {"size": 20}, {"size": 7}, {"size": 13}]),
    "bilinear": (
        (1, 2, 13, 6),
        [
            {"scale_factor": 2},
            {"scale_factor": (1.5, 2)},
            {"scale_factor": (2, 1.5)},
            {"size": (13, 9)},
            {"size": (20, 6)},
            {"size": (7, 12), "align_corners": True},
        ],
    ),
    "bicubic": ((1, 2, 13, 6), [{"scale_factor": 2}, {"scale_factor": (1.5, 2)}, {"size": (20, 9)}]),
    "trilinear": ((1, 1, 8, 5, 4), [{"scale_factor": 2}, {"size": (11, 10, 4)}]),
    "nearest": ((1, 2, 13, 6), [{"scale_factor": 2}, {"size": (20, 9)}]),
}


@workers(1, 2, 4)
@pytest.mark.parametrize(("mode", "large"), [*((mode, False) for mode in MODES), ("bilinear", True)])
def test_upsampling(mode, large):
    world, wrong = gridwise.world(), []
    shape, each = MODES[mode]
    shape = (4, 64, *shape[2:]) if large else shape
    others = len(shape) - 3
    for options in each:
        for dtype in (torch.float32, torch.float64):
            for space in ([world.size, *[1] * others], [*[1] * others, world.size]):
                P_x = world.create_cartesian_topology_partition([1, 1, *space])
                for infinite in ("x", "cotangent"):
                    layer = nn.DistributedUpsample(P_x, mode=mode, **options)
                    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
                    sequential = torch.nn.Upsample(mode=mode, **options)
                    wrong += check(layer, sequential, x, infinite, f"{mode} {options} on {space}, {dtype}")
    assert not wrong, "\n".join(wrong)


@workers(1, 2)
@pytest.mark.parametrize("large", [1e20, 1e300, math.nan])
def test_channels_whose_variance_overflows(large):
    """They are divided by infinity, as by torch, in the first call and in those that torch's own function makes."""
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([1, 1, world.size, 1])
    dtype = torch.float32 if large == 1e20 else torch.float64
    tracked = {"affine": True, "track_running_stats": True, "dtype": dtype}
    made = [
        (nn.DistributedBatchNorm2d(P_x, 2, dtype=dtype), torch.nn.BatchNorm2d(2, dtype=dtype)),
        (nn.DistributedInstanceNorm2d(P_x, 2, **tracked), torch.nn.InstanceNorm2d(2, **tracked)),
    ]
    wrong = []
    for rows in (4, 1):  # the second worker has none of the latter
        x = torch.randn(3, 2, rows, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
        x[1, 1] *= large if math.isfinite(large) else 1
        x[2, 0, 0, 1] = 1.0 if math.isfinite(large) else large
        for layer, sequential in made:
            for call in range(2):
                case = f"{large} {layer} {rows} rows, call {call}"
                wrong += check(layer, sequential, x.clone(), "nothing", case)
                for (name, mine), whole in zip(layer.named_buffers(), sequential.buffers(), strict=True):
                    wrong += differ(mine, whole, f"{case}: {name}")
    assert not wrong, "\n".join(wrong)
