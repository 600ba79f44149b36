"""Padding with one pair of numbers for each dim, the first dim first."""

from __future__ import annotations

from collections.abc import Sequence

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
