"""Attention that drops weights, the same ones on every grid."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...partition import Partition
from ..layers.dropout import DistributedDropout
from .plainly import shares


class Attended(torch.nn.Module):
    """`F.scaled_dot_product_attention` with dropout, of tensors whose tokens are whole.

    If `follows_mode`, it drops when `owner` is in training, the module whose code calls it (None: the model).
    """

    owner: torch.nn.Module

    def __init__(self, P: Partition, p: float, follows_mode: bool, owner: torch.nn.Module | None) -> None:
        super().__init__()
        self.dropout, self.follows_mode = DistributedDropout(P, p), follows_mode
        self.__dict__["owner"] = owner if owner is not None else self  # no child of this module

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **rest: Any,
    ) -> Tensor:
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = (query * scale) @ key.transpose(-2, -1)
        if is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        if attn_mask is not None:
            hides = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if hides else scores + attn_mask
        return self.layer()(scores.softmax(-1) if attn_mask is None else shares(scores)) @ value

    def layer(self) -> DistributedDropout:
        """The dropout, in the mode that it follows."""
        return self.dropout.train(self.owner.training or not self.follows_mode)
