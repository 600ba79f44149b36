"""One call of an ATen operator: its arguments by name, with the shape and dtype of a global tensor in place of each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..grid import Shape
from ..torch_internals.operators import OpOverload, schema_of
from .functions import function_of, short_name

LocalFunction = Callable[..., Any]


@dataclass(frozen=True)
class TensorSpec:
    """What is known about a global tensor before there is one."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    order: tuple[int, ...] = field(default=(), kw_only=True)
    """The dims by decreasing stride; empty if that is their natural order."""

    @property
    def dim(self) -> int:
        return len(self.shape)

    @property
    def volume(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.volume * self.dtype.itemsize


def order_of(x: Tensor) -> tuple[int, ...]:
    """The dims by decreasing stride, if memory is dense and that is not their natural order; otherwise empty."""
    shape, stride = x.shape, x.stride()
    order = tuple(sorted(range(len(shape)), key=lambda d: -stride[d]))
    step = 1
    for d in reversed(order):
        if stride[d] != step and shape[d] != 1:
            return ()
        step *= shape[d]
    return order if order != tuple(range(len(shape))) else ()


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Any, ...]
    """The outputs' global shapes and dtypes."""

    @property
    def result(self) -> Any:
        return self.results[0]

    @property
    def kind(self) -> str:
        """The operator's name without its namespace and overload, as in "add_"."""
        return short_name(self.op)

    @cached_property
    def given(self) -> dict[str, Any]:
        """All arguments by their names, defaults included."""
        found = {}
        for i, argument in enumerate(schema_of(self.op).arguments):
            if i < len(self.args):
                found[argument.name] = self.args[i]
            else:
                found[argument.name] = self.kwargs.get(argument.name, argument.default_value)
        return found

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    @cached_property
    def tensors(self) -> list[Any]:
        """The tensor arguments, in order; those in lists too."""
        return list(_tensors(self.given.values()))

    def dims(self, name: str, of: int) -> tuple[int, ...]:
        """The dims that an argument names, of a tensor with `of` dims: non-negative; all for None or an empty list."""
        given = self[name]
        if given is None or given == []:
            return tuple(range(of))
        return tuple(d % max(1, of) for d in (given if isinstance(given, Sequence) else (given,)))

    def locally(self, op: OpOverload | None = None, **changed: object) -> LocalFunction:
        """The operator as a function of its tensors, with some other arguments changed."""
        schema = schema_of(self.op)
        given = {**self.given, **changed}
        positional = [given[a.name] for a in schema.arguments if not a.kwarg_only]
        named = {a.name: given[a.name] for a in schema.arguments if a.kwarg_only}
        call = function_of(op or self.op)
        spots = [i for i, each in enumerate(positional) if _holds_tensors(each)]
        first = spots == list(range(len(spots))) and all(isinstance(positional[i], TensorSpec) for i in spots)
        if first and not any(map(_holds_tensors, named.values())):  # all tensors come first: the usual case
            rest, count = tuple(positional[len(spots) :]), len(spots)
            return lambda *tensors: call(*tensors[:count], *rest, **named)

        def run(*tensors: Tensor) -> Any:
            left = iter(tensors)
            filled = [_filled(each, left) for each in positional]
            return call(*filled, **{name: _filled(each, left) for name, each in named.items()})

        return run


def _tensors(arguments: Iterable[Any]) -> Iterator[Any]:
    for each in arguments:
        if isinstance(each, TensorSpec):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _holds_tensors(argument: object) -> bool:
    return next(_tensors([argument]), None) is not None


def _filled(argument: object, tensors: Iterator[Tensor]) -> Any:
    if isinstance(argument, TensorSpec):
        return next(tensors)
    if isinstance(argument, list | tuple) and _holds_tensors(argument):
        return [_filled(each, tensors) for each in argument]
    return argument
