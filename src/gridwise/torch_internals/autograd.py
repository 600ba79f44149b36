"""Nodes of autograd, gradients in one message, and the norm that torch clips them by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.utils import clip_grad

current_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node that backward is running in this thread; None in forward."""


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of all tensors in one new tensor, also if it is only one, which torch would not copy."""
    if len(tensors) == 1:
        return tensors[0].clone(memory_format=torch.contiguous_format).view(-1)
    return _flatten_dense_tensors(tensors)


def unflattened(flat: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Views of a flat tensor with the shapes of these, one after another."""
    return _unflatten_dense_tensors(flat, tensors)


def next_number() -> int:
    """The number of the node that autograd will make next in this thread; backward runs the largest number first."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


def number_of(node: Any) -> int:
    return node._sequence_nr()


def run_last(node: Any) -> None:
    """Let backward run a node only when no other one is left that it could run."""
    node._set_sequence_nr(0)


total_norm_by_torch: Callable[..., Tensor] = clip_grad._get_total_norm


def replace_total_norm(to_clip_by: Callable[..., Tensor], public: Callable[..., Tensor]) -> None:
    """Replace the norm in its module, where torch's `clip_grad_norm_` looks it up, and under its public name."""
    clip_grad._get_total_norm, torch.nn.utils.get_total_norm = to_clip_by, public
