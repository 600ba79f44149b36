"""Plain tensors, many at a time: they lie in host memory exactly as they are stored, whole and row-major.

For a state of ten thousand small tensors, time goes into the work per tensor, not per byte. Nearly all tensors of a
state are plain, and many are alike, so saving and loading pick these out of a dict in one pass and keep them in
columns: a few attributes of each are read, and from then on it is an address and the number of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...grid import Shape
from ..format.manifest import CODES

TYPES = {Tensor, torch.nn.Parameter}
"""Types that carry no placement: by far the most tensors of a state."""

STRIDED = torch.strided


class TensorKind(NamedTuple):
    """The dtype, shape and size that tensors of one kind share."""

    code: str
    shape: Shape
    nbytes: int


class Plain(NamedTuple):
    """Plain tensors in columns, none of them empty. The addresses are valid as long as the tensors exist."""

    names: list[Any]
    tensors: list[Tensor]
    addresses: list[int]
    numbers: list[int]
    """The index of each tensor's kind in `kinds`."""
    kinds: list[TensorKind]

    @property
    def codes(self) -> list[str]:
        return list(map([kind.code for kind in self.kinds].__getitem__, self.numbers))

    @property
    def shapes(self) -> list[Shape]:
        return list(map([kind.shape for kind in self.kinds].__getitem__, self.numbers))

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor."""
        return list(map([kind.nbytes for kind in self.kinds].__getitem__, self.numbers))


def plain_of(items: Mapping[Any, Any]) -> tuple[Plain, dict[Any, Any]]:
    """The plain tensors among the items, and the other items, both in order."""
    found: dict[tuple[torch.dtype, torch.Size], int] = {}
    number, last_dtype, last_shape = 0, None, None
    numbers: list[int] = []
    addresses: list[int] = []
    add_number, add_address = numbers.append, addresses.append
    rest: dict[Any, Any] = {}
    for name, x in items.items():  # one visit per tensor, while it is in the processor's cache
        if type(x) in TYPES and x.is_cpu and x.layout is STRIDED and x.is_contiguous() and not x.is_neg():
            dtype, shape = x.dtype, x.shape
            if dtype is not last_dtype or shape != last_shape:  # else it is of the same kind as the one before
                number = found.setdefault((dtype, shape), len(found))
                last_dtype, last_shape = dtype, shape
            add_number(number)
            add_address(x.data_ptr())
        else:
            rest[name] = x
    names = [name for name in items if name not in rest] if rest else list(items)
    tensors = [items[name] for name in names] if rest else list(items.values())
    odd = {number for (dtype, shape), number in found.items() if dtype not in CODES or dtype.is_complex or 0 in shape}
    if odd or not all(addresses):
        fits = [
            bool(address) and (number not in odd or (x.dtype in CODES and x.numel() > 0 and not x.is_conj()))
            for x, address, number in zip(tensors, addresses, numbers, strict=True)
        ]
        columns = [list(compress(column, fits)) for column in (names, tensors, addresses, numbers)]
        names, tensors, addresses, numbers = columns
        plain = set(names)
        rest = {name: x for name, x in items.items() if name not in plain}
    kinds = [
        TensorKind(CODES.get(dtype, ""), tuple(shape), math.prod(shape) * dtype.itemsize) for dtype, shape in found
    ]
    return Plain(names, tensors, addresses, numbers, kinds), rest
