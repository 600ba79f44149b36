"""Values of a recorded step as expressions of strided memory, not yet computed.

    Load      buffer[offset + sum of strides * indices]        Indexed   the same plus step * (another expression)
    Const     a number                                         Formula      C++ of other expressions

The indices are those of the value's own dims. A view of a value is therefore the same expression with other strides,
and an elementwise operator is an expression of expressions: neither takes memory or a loop of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

Shape = tuple[int, ...]
Strides = tuple[int, ...]

C_TYPES = {torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.bool: "bool"}


class NotNativeError(Exception):
    """A step has something that cannot be written as plain loops; it is run in another way."""


class Buffer:
    """Memory: an argument of the step (`place`), a constant (`data`), or neither, for intermediate results."""

    def __init__(self, number: int, dtype: torch.dtype, numel: int, place: int = -1, data: object = None) -> None:
        self.number, self.dtype, self.numel, self.place, self.data = number, dtype, numel, place, data

    @property
    def is_scratch(self) -> bool:
        return self.place < 0 and self.data is None


class Load(NamedTuple):
    buffer: Buffer
    offset: int
    strides: Strides


class Indexed(NamedTuple):
    load: Load
    step: int
    place: Tree


class Const(NamedTuple):
    text: str


class Formula(NamedTuple):
    code: str
    arguments: tuple[Tree, ...]


Tree = Load | Indexed | Const | Formula
Move = Callable[[Load], Load]


class StridedValue(NamedTuple):
    """A tensor: its shape, type and expression."""

    shape: Shape
    dtype: torch.dtype
    tree: Tree


def moved(tree: Tree, move: Move) -> Tree:
    """The expression with other offsets and strides."""
    if isinstance(tree, Load):
        return move(tree)
    if isinstance(tree, Indexed):
        return Indexed(move(tree.load), tree.step, moved(tree.place, move))
    if isinstance(tree, Formula):
        return Formula(tree.code, tuple(moved(part, move) for part in tree.arguments))
    return tree


def loads(tree: Tree) -> Iterator[Load]:
    """All accesses to memory in an expression."""
    if isinstance(tree, Load):
        yield tree
    elif isinstance(tree, Indexed):
        yield tree.load
        yield from loads(tree.place)
    elif isinstance(tree, Formula):
        for part in tree.arguments:
            yield from loads(part)


def is_indexed(tree: Tree) -> bool:
    """Whether an expression reads memory at places that depend on values."""
    return isinstance(tree, Indexed) or (isinstance(tree, Formula) and any(map(is_indexed, tree.arguments)))


def contiguous(shape: Shape) -> Strides:
    return tuple(math.prod(shape[d + 1 :]) if shape[d] != 1 else 0 for d in range(len(shape)))


# ---- views -----------------------------------------------------------------------------------------------------------
def arranged(value: StridedValue, shape: Shape, dims: Sequence[int | None]) -> StridedValue:
    """The value with dims in another order; None is a new dim, along which nothing changes."""

    def move(load: Load) -> Load:
        return Load(load.buffer, load.offset, tuple(0 if d is None else load.strides[d] for d in dims))

    return StridedValue(shape, value.dtype, moved(value.tree, move))


def broadcast(value: StridedValue, shape: Shape) -> StridedValue:
    lead = len(shape) - len(value.shape)
    own = [None if size == 1 else d for d, size in enumerate(value.shape)]
    return arranged(value, shape, [None] * lead + own)


def sliced(value: StridedValue, dim: int, start: int, step: int, size: int) -> StridedValue:
    def move(load: Load) -> Load:
        strides, here = load.strides, load.strides[dim]
        return Load(load.buffer, load.offset + start * here, (*strides[:dim], here * step, *strides[dim + 1 :]))

    shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
    return StridedValue(shape, value.dtype, moved(value.tree, move))


def selected(value: StridedValue, dim: int, index: int) -> StridedValue:
    one = sliced(value, dim, index, 1, 1)
    kept = [d for d in range(len(value.shape)) if d != dim]
    return arranged(one, tuple(value.shape[d] for d in kept), kept)


def reshaped(value: StridedValue, shape: Shape) -> StridedValue | None:
    """The value in another shape; None if its expression does not allow that without a copy."""
    blocks = _common_blocks(value.shape, shape)

    def move(load: Load) -> Load:
        strides: list[int] = []
        for own, new in blocks:
            sizes, steps = [value.shape[d] for d in own], [load.strides[d] for d in own]
            if any(steps[k] != steps[k + 1] * sizes[k + 1] for k in range(len(own) - 1)):
                raise NotNativeError("the view needs a copy")
            inner = steps[-1] if steps else 0
            strides += [inner * math.prod(new[k + 1 :]) for k in range(len(new))]
        return Load(load.buffer, load.offset, _padded(strides, shape))

    try:
        return StridedValue(shape, value.dtype, moved(value.tree, move))
    except NotNativeError:
        return None


def _padded(strides: list[int], shape: Shape) -> Strides:
    """Strides of the dims larger than one, with zeros for the others."""
    values = iter(strides)
    return tuple(next(values) if size != 1 else 0 for size in shape)


def _common_blocks(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Groups of dims of `old`, each with the sizes in `new` that have the same product; dims of size 1 are left out."""
    mine = [d for d, size in enumerate(old) if size != 1]
    theirs = [size for size in new if size != 1]
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(mine):
        own, sizes = [mine[i]], [theirs[j]]
        a, b = old[mine[i]], theirs[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, own, i = a * old[mine[i]], [*own, mine[i]], i + 1
            else:
                b, sizes, j = b * theirs[j], [*sizes, theirs[j]], j + 1
        blocks.append((own, sizes))
    return blocks
