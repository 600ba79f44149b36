"""Nodes of autograd, gradients in one message, and the norm that torch clips them by."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
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


backward_number: Callable[[], int] = torch._C._current_graph_task_id
"""A number of the backward that runs in this thread, which no other has; -1 outside of one."""


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call something once the backward that runs now has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def function_of(node: Any) -> type[torch.autograd.Function] | None:
    """The Function whose backward a node runs; None if it is one of torch's own operators."""
    return getattr(type(node), "_forward_cls", None)


def is_mean(node: Any) -> bool:
    """Whether a node is that of a mean of everything: of `mean`, or of a loss that reduces by one."""
    if node.name() == "MeanBackward1":
        return not node.metadata and all(len(each.shape) == 0 for each in getattr(node, "_input_metadata", ()))
    return node.name() == "MeanBackward0" or getattr(node, "_saved_reduction", None) == _REDUCES_BY_MEAN


_REDUCES_BY_MEAN = 1


def differentiated_now() -> list[Tensor]:
    """The tensors that are being differentiated, on any thread: with CUDA, nodes run on another than the call."""
    found: list[Any] = []
    frames: list[FrameType | None] = [*sys._current_frames().values()]
    while frames:
        frame = frames.pop()
        if frame is not None:
            if frame.f_code in _CALLS:
                given = frame.f_locals.get(_CALLS[frame.f_code])
                found += given if isinstance(given, tuple | list) else [given]
            frames.append(frame.f_back)
    del frame  # it may be the frame of this call: a cycle
    return [x for x in found if isinstance(x, Tensor)]


_CALLS = {torch.autograd.backward.__code__: "tensors", torch.autograd.grad.__code__: "outputs"}
"""The calls of backward, and the variable of each that holds the roots."""
total_norm_by_torch: Callable[..., Tensor] = clip_grad._get_total_norm


def replace_total_norm(to_clip_by: Callable[..., Tensor], public: Callable[..., Tensor]) -> None:
    """Replace the norm in its module, where torch's `clip_grad_norm_` looks it up, and under its public name."""
    clip_grad._get_total_norm, torch.nn.utils.get_total_norm = to_clip_by, public
