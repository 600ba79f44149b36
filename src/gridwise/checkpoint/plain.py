"""Plain tensors, many at a time: they lie in host memory just as they are stored, whole and row-major.

A state of ten thousand small tensors costs what is done per tensor, not what is done per byte. Nearly all tensors of a
state are plain, so the walks that save and load pick these out of a dict in one pass and keep them in columns: a few
attributes are read of each, and from then on it is an address and a number of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
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
    found = [
        (name, x, x.dtype, x.shape, x.data_ptr(), x.nbytes)
        for name, x in items.items()
        if type(x) in KINDS and x.is_cpu and x.layout is STRIDED and x.is_contiguous() and not x.is_neg()
    ]
    odd = {dtype for dtype in {each[2] for each in found} if dtype not in CODES or dtype.is_complex}
    if odd or not all(map(itemgetter(5), found)) or not all(map(itemgetter(4), found)):
        found = [
            each
            for each in found
            if each[4] and each[5] and (each[2] not in odd or (each[2] in CODES and not each[1].is_conj()))
        ]
    rest: dict[Any, Any] = {}
    if len(found) < len(items):
        plain = set(map(itemgetter(0), found))
        rest = {name: x for name, x in items.items() if name not in plain}
    if not found:
        return Plain([], [], [], [], [], []), rest
    names, tensors, dtypes, shapes, addresses, sizes = map(list, zip(*found, strict=True))
    return Plain(names, tensors, list(map(CODES.__getitem__, dtypes)), shapes, addresses, sizes), rest
