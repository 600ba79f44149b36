"""The structure of a tensor, padding in torch's order, and the zero-volume tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gridwise.partition import zero_volume_tensor as zero_volume_tensor


class TensorStructure:
    """Shape, dtype and requires_grad of a tensor, without its values."""

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.shape: Any = None
        self.dtype: Any = None
        self.requires_grad: Any = None
        if tensor is not None:
            self.fill_from_tensor(tensor)

    def fill_from_tensor(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.requires_grad = tensor.shape, tensor.dtype, tensor.requires_grad

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorStructure):
            return False
        same_shape = np.array_equal(np.asarray(self.shape), np.asarray(other.shape))
        return same_shape and self.dtype == other.dtype and self.requires_grad == other.requires_grad

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TensorStructure({self.shape}, {self.dtype}, requires_grad={self.requires_grad})"


def distdl_padding_to_torch_padding(pad: Sequence[Sequence[int]] | np.ndarray) -> tuple[int, ...]:
    """``[[a0, b0], ..., [an, bn]]`` as ``(an, bn, ..., a0, b0)``, the order of `torch.nn.functional.pad`."""
    return tuple(int(n) for pair in reversed(list(pad)) for n in pair)
