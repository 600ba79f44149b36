"""Operators with windows: convolutions and pooling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .contract import Case, check_case

IMAGE, WEIGHT, CHANNELS = (2, 4, 13, 11), (6, 4, 3, 3), (6,)
CONVOLUTIONS: list[Case] = [
    ("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), (IMAGE, WEIGHT, CHANNELS)),
    ("conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding=(2, 1), dilation=(1, 2)), (IMAGE, WEIGHT)),
    ("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=(3, 2), padding=1), (IMAGE, (6, 4, 2, 5), CHANNELS)),
    ("conv2d", lambda x, w: F.conv2d(x, w, padding=4), (IMAGE, WEIGHT)),
    ("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding="same", dilation=2), (IMAGE, (6, 4, 4, 2), CHANNELS)),
    ("conv2d", lambda x, w: F.conv2d(x, w, padding="valid"), (IMAGE, WEIGHT)),
    ("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2), (IMAGE, (6, 2, 3, 3), CHANNELS)),
    ("conv2d", lambda x, w: F.conv2d(x, w, padding=1, groups=4), (IMAGE, (4, 1, 3, 3))),
    ("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), (IMAGE[1:], WEIGHT, CHANNELS)),
    ("conv1d", lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=2), ((3, 4, 17), (6, 4, 5), CHANNELS)),
    ("conv3d", lambda x, w, b: F.conv3d(x, w, b, stride=(1, 2, 1), padding=1), ((2, 2, 5, 7, 6), (3, 2, 3, 3, 3), (3,))),
    (
        "_convolution",
        lambda x, w, b: torch._convolution(x, w, b, [2, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, False, False),
        (IMAGE, WEIGHT, CHANNELS),
    ),
    (
        "convolution",
        lambda x, w, b: torch.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
        (IMAGE, (6, 2, 3, 3), CHANNELS),
    ),
]  # fmt: skip


POOLING: list[Case] = [
    ("max_pool2d", lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    ("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    ("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), ((2, 3, 12, 10),)),
    ("max_pool2d", lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0), (2, 1)), (IMAGE,)),
    ("max_pool2d", lambda x: F.max_pool2d(x, 4, 1, 2, ceil_mode=True), (IMAGE[1:],)),
    ("max_pool1d", lambda x: F.max_pool1d(x, 3, 1, 1), ((2, 3, 17),)),
    ("max_pool3d", lambda x: F.max_pool3d(x, 3, 2, 1), ((1, 2, 7, 8, 9),)),
    ("max_pool2d_with_indices", lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), (IMAGE,)),
    ("max_pool1d_with_indices", lambda x: F.max_pool1d(x, 2, return_indices=True), ((2, 3, 17),)),
    ("max_pool3d_with_indices", lambda x: F.max_pool3d(x, 3, 1, 1, return_indices=True), ((1, 2, 5, 6, 4),)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), ((2, 3, 12, 10),)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (IMAGE,)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), ((2, 3, 12, 10),)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, (4, 2), (3, 2), (2, 1), True, divisor_override=5), (IMAGE[1:],)),
    ("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), ((2, 3, 16),)),
    ("avg_pool3d", lambda x: F.avg_pool3d(x, 3, 2, 1), ((1, 2, 7, 8, 9),)),
    ("avg_pool3d", lambda x: F.avg_pool3d(x, (3, 2, 4), 3, 1, True, False), ((2, 8, 8, 9),)),
]


TRANSPOSED: list[Case] = [
    ("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), (IMAGE, (4, 6, 3, 3), CHANNELS)),
    ("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, None, 2), (IMAGE, (4, 5, 2, 2))),
    (
        "conv_transpose2d",
        lambda x, w, b: F.conv_transpose2d(x, w, b, (3, 1), (0, 2), dilation=2),
        (IMAGE, (4, 6, 2, 3), CHANNELS),
    ),
    ("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, 4, 0, 3), (IMAGE, (4, 6, 2, 1), CHANNELS)),
    ("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, groups=2), (IMAGE, (4, 3, 4, 4), CHANNELS)),
    ("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, None, 2, 3), (IMAGE[1:], (4, 3, 7, 4))),
    ("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, None, 3, 2, 1), ((2, 3, 17), (3, 4, 5))),
    ("conv_transpose3d", lambda x, w, b: F.conv_transpose3d(x, w, b, 2, 1), ((1, 2, 4, 5, 3), (2, 3, 3, 3, 3), (3,))),
    (
        "convolution",
        lambda x, w: torch.convolution(x, w, None, [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
        (IMAGE, (4, 3, 3, 3)),
    ),
]
PADS: list[Case] = [
    ("constant_pad_nd", lambda x: torch.constant_pad_nd(x, (1, 2, 3, 0, 0, 1), 2.5), (IMAGE,)),
    ("pad", lambda x: F.pad(x, (1, -2, -3, 1, -1, 2, 1, 0), value=1.5), (IMAGE,)),
    ("pad", lambda x: F.pad(x, (15, 20), value=1.5), (IMAGE,)),
    ("pad", lambda x: F.pad(x, (3, 2, 0, 4), "reflect"), (IMAGE,)),
    ("pad", lambda x: F.pad(x, (10, 9, 12, 12), "reflect"), (IMAGE,)),
    ("pad", lambda x: F.pad(x, (3, 2, 0, 14), "replicate"), (IMAGE,)),
    ("pad", lambda x: F.pad(x, (3, 2, 0, 4), "circular"), (IMAGE,)),
    ("pad", lambda x: F.pad(x, (5, 7, 1, 1, 2, 0), "circular"), ((1, 2, 4, 5, 7),)),
    ("pad", lambda x: F.pad(x, (5, 6), "reflect"), ((2, 3, 17),)),
    ("pad", lambda x: F.pad(x, (2, 1, 1, 0, 1, 2), "reflect"), ((1, 2, 4, 5, 6),)),
    ("reflection_pad2d", lambda x: torch._C._nn.reflection_pad2d(x, (1, 2, 3, 4)), (IMAGE,)),
    ("replication_pad3d", lambda x: torch._C._nn.replication_pad3d(x, (1, 2, 3, 4, 1, 1)), ((2, 4, 5, 6),)),
    ("_pad_circular", lambda x: torch._C._nn._pad_circular(x, (1, 2, 3, 4)), (IMAGE,)),
]
ADAPTIVE: list[Case] = [
    ("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (5, 4)), (IMAGE,)),
    ("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (1, None)), (IMAGE,)),
    ("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 7), ((2, 3, 17),)),
    ("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 7)), ((1, 2, 4, 5, 7),)),
    ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (5, 20), True), (IMAGE,)),
    ("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3, True), ((3, 17),)),
    ("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 3, True), ((1, 2, 4, 5, 7),)),
]


UPSAMPLING: list[Case] = [
    ("upsample_nearest2d", lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    ("upsample_nearest2d", lambda x: F.interpolate(x, scale_factor=(1.7, 0.6)), (IMAGE,)),
    ("upsample_nearest1d", lambda x: F.interpolate(x, size=40), ((2, 3, 17),)),
    ("_upsample_nearest_exact3d", lambda x: F.interpolate(x, size=(3, 9, 8), mode="nearest-exact"), ((1, 2, 4, 5, 7),)),
    ("upsample_bilinear2d", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    ("upsample_bilinear2d", lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), (IMAGE,)),
    ("upsample_bilinear2d", lambda x: F.interpolate(x, (20, 7), mode="bilinear", align_corners=True), (IMAGE,)),
    ("upsample_bilinear2d", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), ((2, 3, 16, 12),)),
    ("upsample_linear1d", lambda x: F.interpolate(x, scale_factor=4, mode="linear"), ((2, 3, 17),)),
    ("upsample_trilinear3d", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), ((1, 2, 4, 5, 7),)),
    ("upsample_bicubic2d", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    ("upsample_bicubic2d", lambda x: F.interpolate(x, (9, 21), mode="bicubic", align_corners=True), (IMAGE,)),
    ("_upsample_bilinear2d_aa", lambda x: F.interpolate(x, (5, 7), mode="bilinear", antialias=True), (IMAGE,)),
    (
        "_upsample_bilinear2d_aa",
        lambda x: F.interpolate(x, (5, 17), mode="bilinear", antialias=True, align_corners=True),
        (IMAGE,),
    ),
    ("_upsample_bicubic2d_aa", lambda x: F.interpolate(x, (4, 15), mode="bicubic", antialias=True), (IMAGE,)),
    ("_upsample_bicubic2d_aa", lambda x: F.interpolate(x, scale_factor=0.3, mode="bicubic", antialias=True), (IMAGE,)),
]


PLACES: list[Case] = [
    ("unfold", lambda x: x.unfold(2, 4, 3), (IMAGE,)),
    ("unfold", lambda x: x.unfold(-1, 2, 5).unfold(1, 2, 1), (IMAGE,)),
    ("im2col", lambda x: F.unfold(x, 3, padding=1, stride=2), (IMAGE,)),
    ("im2col", lambda x: F.unfold(x, (2, 3), dilation=2, padding=(3, 1), stride=(1, 2)), (IMAGE[1:],)),
    ("im2col", lambda x: F.unfold(x, 2, padding=3), ((1, 2, 3, 4),)),
    ("col2im", lambda x: F.fold(x, (8, 9), 3, padding=1, stride=2), ((2, 36, 20),)),
    ("col2im", lambda x: F.fold(x, (7, 6), (2, 1), dilation=2, padding=(1, 0), stride=3), ((4, 6),)),
    ("col2im", lambda x: F.fold(x, (9, 8), 2, stride=4), ((1, 8, 4),)),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), ((2, 8, 5, 3),)),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 3), ((2, 2, 6, 9),)),
    ("channel_shuffle", lambda x: F.channel_shuffle(x, 2), (IMAGE,)),
    ("roll", lambda x: x.roll((3, -5), (2, 3)), (IMAGE,)),
    ("roll", lambda x: x.roll((-3, 14, 1), (0, -2, -2)), (IMAGE,)),
    ("flip", lambda x: x.flip((1, -1)), (IMAGE,)),
    ("grid_sampler", lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (IMAGE, (2, 5, 7, 2))),
    (
        "grid_sampler",
        lambda x, g: F.grid_sample(x, g, "nearest", "reflection", True),
        ((2, 3, 4, 5, 6), (2, 5, 7, 2, 3)),
    ),
    ("max_unpool2d", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), ((2, 3, 12, 10),)),
    ("max_unpool3d", lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2), ((3, 4, 6, 8),)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS + TRANSPOSED)
def test_convolutions(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", POOLING + ADAPTIVE)
def test_pooling(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", PADS)
def test_padding(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", UPSAMPLING)
def test_interpolation(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", PLACES)
def test_places(case: Case) -> None:
    check_case(case)
