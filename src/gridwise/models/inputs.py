"""The arguments of a model: any nesting of tensors, the partition of each, and arguments that are held at a value.

    forward(self, x, mask=None, scale=1.0)       x is on `P_x`; mask has no partition, so it must not be a tensor
    distribute(model, P_x, mask=P_m, scale=2.0)  tensors in mask are on `P_m`, scale is held at 2.0
    distribute(model, P_x, time=world)           a partition without a grid: every worker holds the whole tensor
    distribute(lambda x, y: ..., P_x)            y is on `P_x` too, or, with the dims of x less the channel, on `P_x` less that

Arguments other than tensors may differ from call to call; each combination is recorded separately.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import PartitionError, UnsupportedError
from ..grid import Grid
from ..partition import CartesianPartition, Partition
from .recording.containers import Branch, Constant, Leaf, Tree, flatten, unflatten
from .recording.contents import same

ONE_TENSOR = Branch(tuple, None, (Branch(tuple, None, (Leaf(0),)), Constant({})))
"""The arguments of most calls: one positional tensor."""


@dataclass(frozen=True)
class Bound:
    """The arguments of one call."""

    tensors: list[Tensor]
    tree: Tree
    """The structure of ``(args, kwargs)``."""
    partitions: list[Partition]
    """One for each tensor."""


class Inputs:
    """The arguments that a model, a method or a function takes."""

    def __init__(self, name: str, function: Callable[..., Any], P_x: Partition, bindings: Mapping[str, Any]) -> None:
        self.name, self.P_x = name, P_x
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters.values()
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.bindings = {
            key: value for key, value in bindings.items() if key in self.signature.parameters or self.takes_any
        }
        self.held = {key: value for key, value in self.bindings.items() if not _partitions_in(value)}
        for key, value in self.held.items():
            if flatten(value)[0]:
                raise UnsupportedError(
                    f"distribute: `{key}` of {name} cannot be held at a tensor.\n"
                    "  fix: give its partition, or register it as a buffer of the model."
                )
        for key, value in self.bindings.items():
            for P in _partitions_in(value):
                if set(P.ranks) != set(P_x.ranks) or (isinstance(P, CartesianPartition) and not P.dim):
                    raise PartitionError(
                        f"distribute: {name}: `{key}` lies on other workers than `P_x`.\n"
                        f"  fix: partitions of the workers {P_x.ranks}."
                    )
        first = next(iter(parameters), None)
        by_place = first is not None and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
        needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self._first = self.bindings.get(first.name, P_x) if first is not None else P_x
        self._is_plain = by_place and not self.held and needed == [first] and isinstance(self._first, Partition)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound | str:
        """The tensors of a call with their partitions, or a description of what is wrong with its arguments."""
        if self._is_plain and len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # most calls
            return Bound([args[0]], ONE_TENSOR, [self._partition(args[0], self._first)])
        try:
            call = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return f"{error}; its arguments are {self.signature}"
        call.arguments = self._with_held(call.arguments)
        partitions, problems = list[Partition](), list[str]()
        first: Tensor | None = None
        for key, value in _arguments(call, self.signature):
            found = self._placed(key, value, first)
            first = value if first is None and isinstance(value, Tensor) else first
            if isinstance(found, str):
                problems.append(found)
            else:
                partitions += found
        if problems:
            return "; ".join(problems)
        leaves, tree = flatten((call.args, call.kwargs), once=False)
        if not leaves:
            return f"no tensor was given, and `P_x` is the grid {self.P_x.shape} of one"
        if len({*map(id, leaves)}) == len(leaves):
            return Bound(leaves, tree, partitions)
        leaves = _apart(leaves, partitions)
        places = {id(x): P for x, P in zip(leaves, partitions, strict=True)}
        leaves, tree = flatten(unflatten(tree, leaves))
        return Bound(leaves, tree, [places[id(x)] for x in leaves])

    def _with_held(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call in the order of the signature, with those that are held at a value."""
        given = {**self.held, **arguments}
        parameters = self.signature.parameters
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                held = {key: value for key, value in self.held.items() if key not in parameters}
                given[name] = {**held, **arguments.get(name, {})}
        return {key: given[key] for key in parameters if key in given}

    def _placed(self, key: str, value: object, first: Tensor | None) -> list[Partition] | str:
        """The partitions of the tensors in an argument, or what is wrong with it; `first` is that of an earlier one."""
        leaves, tree = flatten(value, once=False)
        if key in self.held and not same(value, self.held[key]):
            what = "a tensor was" if leaves else f"{value!r} was"
            fix = "P" if leaves else f"{value!r}"
            return f"`{key}` is held at {self.held[key]!r}, {what} given; distribute(model, P_x, {key}={fix}) takes it"
        parameter = self.signature.parameters.get(key)
        has_default = parameter is not None and parameter.default is not parameter.empty
        binding = self.bindings.get(key, None if has_default else self.P_x)
        if binding is None and leaves:
            assert parameter is not None
            if all(x.dim() == 0 for x in leaves):
                binding = self.P_x
            else:
                return f"`{key}` is held at {parameter.default!r}, a tensor was given; distribute(model, P_x, {key}=P) takes it"
        if isinstance(binding, Partition):
            if key in self.bindings and isinstance(binding, CartesianPartition) and not leaves and not has_default:
                return f"`{key}` is a tensor on the grid {binding.shape}: {value!r} was given"
            return self._on_grid(key, leaves, binding, first)
        partitions, form = flatten(binding, lambda part: isinstance(part, Partition), once=False)
        if binding is not None and form != tree:
            return f"`{key}` has tensors in another form than its partitions"
        return partitions

    def _on_grid(self, key: str, leaves: Sequence[Tensor], P: Partition, first: Tensor | None) -> list[Partition] | str:
        """The partitions of the tensors of an argument on `P`, or which of them cannot lie there."""
        found = [self._partition(x, P) for x in leaves]
        if key in self.bindings or first is None or not isinstance(P, CartesianPartition):
            return found
        for i, x in enumerate(leaves):
            if isinstance(found[i], CartesianPartition) and x.dim() != P.dim:
                labels = first.dim() == P.dim > 1 and (x.shape == (first.shape[0], *first.shape[2:]))
                if not labels or P.shape[1] > 1:
                    return (
                        f"`{key}` has {x.dim()} dims, the grid {P.shape} of `P_x` has {P.dim} axes; "
                        f"distribute({self.name}, P_x, {key}=P) says on which grid it lies"
                    )
                found[i] = CartesianPartition(P.transport, Grid(P.ranks, (P.shape[0], *P.shape[2:])))
        return found

    def _partition(self, x: Tensor, P: Partition) -> Partition:
        """The partition of a tensor in an argument on `P`: one without dims is whole on every worker."""
        return P if x.dim() else Partition(P.transport, self.P_x.geometry)


def _apart(leaves: Sequence[Tensor], partitions: Sequence[Partition]) -> list[Tensor]:
    """The tensors, with those that occur on several partitions as several: blocks of as many global tensors."""
    found: dict[tuple[int, Partition], Tensor] = {}
    first: dict[int, Partition] = {}
    for x, P in zip(leaves, partitions, strict=True):
        is_other = first.setdefault(id(x), P) != P
        if (id(x), P) not in found:
            found[id(x), P] = x.view_as(x) if is_other else x
    return [found[id(x), P] for x, P in zip(leaves, partitions, strict=True)]


def _arguments(call: inspect.BoundArguments, signature: inspect.Signature) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in call.arguments.items():
        if signature.parameters[key].kind is inspect.Parameter.VAR_KEYWORD:
            found += value.items()
        else:
            found.append((key, value))
    return found


def _partitions_in(value: object) -> list[Partition]:
    return flatten(value, lambda part: isinstance(part, Partition))[0]


def as_tensors(example: object, dtype: torch.dtype) -> Any:
    """An example with shapes replaced by tensors on the meta device."""

    def is_shape(value: object) -> bool:
        return isinstance(value, tuple | list) and bool(value) and all(type(n) is int for n in value)

    leaves, tree = flatten(example, lambda value: isinstance(value, Tensor) or is_shape(value))
    made = [torch.empty(tuple(leaf), dtype=dtype, device="meta") if is_shape(leaf) else leaf for leaf in leaves]
    return unflatten(tree, made)
