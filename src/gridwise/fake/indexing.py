"""Indexing of fakes on a device that this machine does not have.

Torch's own `tensor[...]` sets a device guard, which calls the driver, before any operator is dispatched. Without a
driver, indexing is expressed in operators instead: ints select, slices slice, None adds a dim, tensors gather.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch
from torch import Tensor


def take(tensor: Tensor, index: object) -> Tensor:
    """`tensor[index]`."""
    items = list(index) if isinstance(index, tuple) else [index]
    gathered: list[Tensor | None] = []
    dim = 0
    for item in _without_ellipsis(items, tensor.dim()):
        if item is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(item, slice):
            start, stop, step = item.indices(tensor.shape[dim])
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, start, stop, step)
        elif isinstance(item, int) and not isinstance(item, bool):
            tensor = tensor.select(dim, item)
            continue
        else:
            gathered += [None] * (dim - len(gathered)) + [item if isinstance(item, Tensor) else torch.tensor(item)]
        dim += 1
    return torch.ops.aten.index.Tensor(tensor, gathered) if gathered else tensor


def put(tensor: Tensor, index: object, value: object) -> None:
    """`tensor[index] = value`, for an index that gives a view."""
    target = take(tensor, index)
    if isinstance(value, Tensor):
        torch.ops.aten.copy_.default(target, value)
    else:
        torch.ops.aten.fill_.Scalar(target, value)


def _without_ellipsis(items: list[Any], dims: int) -> list[Any]:
    for at, item in enumerate(items):
        if isinstance(item, EllipsisType):
            used = sum(1 for other in items if other is not None) - 1
            return [*items[:at], *[slice(None)] * (dims - used), *items[at + 1 :]]
    return items
