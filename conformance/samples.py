"""Torch's operator database as calls of functions of tensors, and the ways to cut these tensors.

Each sample of an operator comes as the function, and where torch has them as the method and in place; the latter two are cut in
fewer ways.

The first tensor that has dims is the one that is cut. The others are closed over by the function, or whole on every worker, or
cut too, if they have as many dims.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database
from torch.utils._pytree import tree_flatten, tree_unflatten

from gridwise.grid import Grid, Layout

Others = Literal["closed", "whole", "cut"]
DTYPES = torch.float64, torch.int64, torch.bool, torch.complex128, torch.float32


@dataclass(frozen=True)
class Sample:
    """One call of an operator or a module of torch's databases."""

    operator: str
    number: int
    call: Callable[..., Any]
    """A function of its tensors, after the module if there is one."""
    tensors: tuple[Tensor, ...]
    first: int
    """Which of them is cut: the first that has dims."""
    variant: str = ""
    """What is particular: a method, a dtype, a mode."""
    module: torch.nn.Module | None = None
    make: Callable[[], torch.nn.Module] | None = None
    """Makes the module anew; random numbers are torch's own."""
    is_plain: bool = False
    """Whether it is run in the simplest ways only."""

    @property
    def name(self) -> str:
        return f"{self.operator} {self.number}{f' {self.variant}' if self.variant else ''}"

    def of(self, module: torch.nn.Module | None) -> Callable[..., Any]:
        """The call as a function of its tensors."""
        return self.call if module is None else partial(self.call, module)


@dataclass(frozen=True)
class Way:
    """A way to cut the tensors of a sample."""

    shape: tuple[int, ...]
    """That of the grid."""
    uneven: bool = False
    """Whether the first block along a cut dim is empty, and the last has the rest."""
    others: Others = "whole"
    which: tuple[int, ...] = ()
    """The tensors that are cut, if it is not the first and what `others` says."""

    def __str__(self) -> str:
        grid = "x".join(map(str, self.shape))
        return f"{grid}{' uneven' if self.uneven else ''}, others {self.others}"

    @property
    def workers(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    def layout(self, shape: Sequence[int]) -> Layout:
        """That of a tensor of this shape."""
        balanced = Layout.balanced(Grid(tuple(range(self.workers)), self.shape), shape)
        if not self.uneven:
            return balanced
        cuts = [own if p == 1 else (0, 0, *(min(i, n) for i in range(1, p - 1)), n)
                for own, p, n in zip(balanced.cuts, self.shape, shape, strict=True)]  # fmt: skip
        return Layout(balanced.grid, tuple(cuts))


def operators() -> list[Any]:
    """The entries of the database."""
    return list(database.op_db)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples(op: Any, dtype: torch.dtype | None = None, has_variants: bool = True) -> Iterator[Sample]:
    """The samples of an entry that have a tensor with dims, the same in every run."""
    dtype = dtype or next((each for each in (*DTYPES, *op.dtypes) if each in op.dtypes), None)
    if dtype is None:  # it needs another device
        return
    seed_all(name_of(op))
    learns = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=learns)):
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))
        for variant, function in _variants(op, sample) if has_variants else [("", op)]:
            made = sample_of(name_of(op), number, function, given, variant)
            if made is not None:
                yield made


def _variants(op: Any, sample: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function, the method and the one that changes its first argument; torch's own name of the variant first."""
    yield "", op
    if isinstance(sample.input, Tensor):
        if op.method_variant is not None and not getattr(op.method_variant, "__name__", "").startswith("<"):
            yield "method", op.method_variant
        if op.inplace_variant is not None and not sample.broadcasts_input:
            yield "in place", partial(_in_place, op.inplace_variant)


def _in_place(function: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return function(x.clone(), *args, **kwargs)


def sample_of(
    name: str,
    number: int,
    function: Callable[..., Any],
    given: Any,
    variant: str = "",
    module: torch.nn.Module | None = None,
) -> Sample | None:
    """The call of a function with what is given, ``(input, args, kwargs)``; None if no dense tensor of it has dims.

    With a module, the function takes it first.
    """
    leaves, form = tree_flatten(given)
    spots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    first = next((i for i, spot in enumerate(spots) if leaves[spot].dim()), None)
    if first is None or any(leaves[spot].layout != torch.strided for spot in spots):
        return None
    tensors = tuple(leaves[spot].detach().contiguous().requires_grad_(leaves[spot].requires_grad) for spot in spots)
    rest: list[Any] = [None if i in spots else leaf for i, leaf in enumerate(leaves)]

    def call(*tensors: Any) -> Any:
        filled, before = list(rest), tensors[: len(tensors) - len(spots)]
        for spot, x in zip(spots, tensors[len(before) :], strict=True):
            filled[spot] = x
        input, args, kwargs = tree_unflatten(filled, form)
        return function(*before, input, *args, **kwargs)

    return Sample(name, number, call, tensors, first, variant, module, is_plain=bool(variant))


def seed_all(name: str) -> None:
    """Seed what the samples of this name are drawn from."""
    _without_seeding()
    seed = xxhash.xxh3_64(name.encode()).intdigest() % 2**32
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (torch's samples draw from it)


@cache
def _without_seeding() -> None:
    """Let random operators of the database draw from the generator that is there."""
    database.wrapper_set_seed = _unseeded


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def ways(sample: Sample) -> list[Way]:
    """Along every dim by 2 and 3, evenly or not, two dims at once; the other tensors closed over, whole, and cut."""
    x = sample.tensors[sample.first]
    if sample.is_plain:
        return plain_ways(sample)
    grids = [(tuple(p if d == e else 1 for e in range(x.dim())), False) for d in range(x.dim()) for p in (2, 3)]
    grids += [(shape, True) for shape, _ in grids if max(shape) == 3]
    grids += [(tuple(2 if e in (d, d + 1) else 1 for e in range(x.dim())), False) for d in range(x.dim() - 1)]
    others: list[Others] = ["whole"]
    if len(sample.tensors) > 1:
        others.append("closed")
    if any(y.dim() == x.dim() for i, y in enumerate(sample.tensors) if i != sample.first):
        others.append("cut")
    return [Way(shape, uneven, other) for shape, uneven in grids for other in others]


def plain_ways(sample: Sample) -> list[Way]:
    """Each dim cut in turn, evenly, by 2."""
    dims = range(sample.tensors[sample.first].dim())
    return [Way(tuple(2 if d == e else 1 for e in dims)) for d in dims]


def share_of(case: str, seed: int) -> float:
    """A number in [0, 1) for each case: those below a fraction are chosen, so a larger fraction has the cases of a smaller."""
    return xxhash.xxh3_64(case.encode(), seed).intdigest() / 2**64
