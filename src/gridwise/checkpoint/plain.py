"""Plain tensors, many at a time: they lie in host memory just as they are stored, whole and row-major.

A state of ten thousand small tensors costs what is done per tensor, not what is done per byte. Nearly all tensors of a
state are plain, so the walks that save and load pick these out of a dict in one pass and keep them in columns: a few
attributes are read of each, and from then on it is an address and a number of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .manifest import CODES

KINDS = {Tensor, torch.nn.Parameter}
"""Types that say nothing about a grid: most tensors of a state, by far."""

STRIDED = torch.strided


class Plain(NamedTuple):
    """Plain tensors in columns, none of them empty. Addresses are good as long as the tensors are."""

    names: list[Any]
    tensors: list[Tensor]
    codes: list[str]
    shapes: list[torch.Size]
    addresses: list[int]
    sizes: list[int]


def plain_of(items: Mapping[Any, Any]) -> tuple[Plain, dict[Any, Any]]:
    """The plain tensors among the items, and the other items, both in their order."""
    columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
    add_name, add_tensor, add_dtype, add_shape, add_address, add_size = (column.append for column in columns)
    for name, x in items.items():  # each tensor is looked at once, while it lies in the processor's cache
        if type(x) in KINDS and x.is_cpu and x.layout is STRIDED and x.is_contiguous() and not x.is_neg():
            add_name(name)
            add_tensor(x)
            add_dtype(x.dtype)
            add_shape(x.shape)
            add_address(x.data_ptr())
            add_size(x.nbytes)
    _, tensors, dtypes, _, addresses, sizes = columns
    odd = {dtype for dtype in set(dtypes) if dtype not in CODES or dtype.is_complex}
    if odd or not all(sizes) or not all(addresses):
        fits = [
            bool(address and size) and (dtype not in odd or (dtype in CODES and not x.is_conj()))
            for x, dtype, address, size in zip(tensors, dtypes, addresses, sizes, strict=True)
        ]
        columns = tuple(list(compress(column, fits)) for column in columns)
    names, tensors, dtypes, shapes, addresses, sizes = columns
    rest: dict[Any, Any] = {}
    if len(names) < len(items):
        plain = set(names)
        rest = {name: x for name, x in items.items() if name not in plain}
    return Plain(names, tensors, list(map(CODES.__getitem__, dtypes)), shapes, addresses, sizes), rest
