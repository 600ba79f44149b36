"""Operators with windows: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .contract import check

Case = tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]


def of(shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


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


@pytest.mark.parametrize(("name", "function", "shapes"), CONVOLUTIONS)
def test_convolutions(name: str, function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    assert f"aten::{name}" in check(function, *of(shapes))
