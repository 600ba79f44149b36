"""How much memory a model's own training step takes on a CPU, as torch's allocator counts it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves


def memory_of_step(model: torch.nn.Module, x: Tensor, others: dict[str, Any]) -> int:
    """The most bytes that a forward and a backward pass hold, besides parameters, inputs, outputs and their gradients."""
    x = x.clone().requires_grad_()
    for tensor in (x, *model.parameters()):
        tensor.grad = torch.zeros_like(tensor)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        made = [y for y in tree_leaves(model(x, **others)) if isinstance(y, Tensor)]
        learning = [y for y in made if y.requires_grad]
        torch.autograd.backward(learning, [torch.ones_like(y) for y in learning])
    return _peak(record) - _bytes_of(made) - _bytes_of(learning)


def _peak(record: profile) -> int:
    assert record.profiler is not None
    assert record.profiler.kineto_results is not None
    held = peak = 0
    for event in sorted(record.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of the memory of these tensors; what is shared counts once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())
