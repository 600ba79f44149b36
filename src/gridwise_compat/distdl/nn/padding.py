"""Padding by one pair of numbers per dim, first dim first, and its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..utilities.torch import distdl_padding_to_torch_padding


class PadNd(torch.nn.Module):
    """Surround a block with `value`."""

    def __init__(self, pad_width: Sequence[Sequence[int]], value: float = 0) -> None:
        super().__init__()
        self.pad_width, self.value = pad_width, value
        self.torch_pad = distdl_padding_to_torch_padding(pad_width)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.torch_pad, mode="constant", value=self.value)


class UnpadNdFunction(torch.autograd.Function):
    """The inner part of a padded tensor, in its dtype; the gradient is padded with `value`."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, pad_width: Sequence[Sequence[int]], value: float) -> Tensor:
        ctx.pad, ctx.value = distdl_padding_to_torch_padding(pad_width), value
        inner = tuple(slice(int(a), n - int(b)) for (a, b), n in zip(pad_width, input.shape, strict=True))
        return input[inner].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return F.pad(gradient, ctx.pad, value=ctx.value), None, None


class UnpadNd(torch.nn.Module):
    """Remove the padding that `PadNd` with the same `pad_width` added to a block."""

    def __init__(self, pad_width: Sequence[Sequence[int]], value: float = 0) -> None:
        super().__init__()
        self.pad_width, self.value = pad_width, value

    def forward(self, input: Tensor) -> Tensor:
        return UnpadNdFunction.apply(input, self.pad_width, self.value)
