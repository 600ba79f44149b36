"""The arguments of a model: any nesting of tensors, the partition of each, and arguments that are held at a value.

    forward(self, x, mask=None, scale=1.0)       x is on `P_x`; mask has no partition, so it must not be a tensor
    distribute(model, P_x, mask=P_m, scale=2.0)  tensors in mask are on `P_m`, scale is held at 2.0
    distribute(model, P_x, time=world)           a partition without a grid: every worker holds the whole tensor

Arguments other than tensors may differ from call to call; each combination is recorded separately.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import PartitionError, UnsupportedError
from ..partition import CartesianPartition, Partition
from .recording.containers import Branch, Constant, Leaf, Tree, flatten, same, unflatten

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
        given = {**self.held, **call.arguments}
        call.arguments = {key: given[key] for key in self.signature.parameters if key in given}
        places: dict[int, Partition] = {}
        problems = []
        for key, value in _arguments(call, self.signature):
            found = self._placed(key, value, places)
            if found is not None:
                problems.append(found)
        leaves, tree = flatten((call.args, call.kwargs))
        if not leaves and not problems:
            problems = [f"no tensor was given, and `P_x` is the grid {self.P_x.shape} of one"]
        return "; ".join(problems) or Bound(leaves, tree, [places[id(x)] for x in leaves])

    def _placed(self, key: str, value: object, places: dict[int, Partition]) -> str | None:
        """Note the partitions of the tensors in an argument; what is wrong with it, if anything."""
        leaves, tree = flatten(value)
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
            places.update({id(x): self._partition(x, binding) for x in leaves})
        elif binding is not None:
            partitions, form = flatten(binding, lambda part: isinstance(part, Partition))
            if form != tree:
                return f"`{key}` has tensors in another form than its partitions"
            places.update({id(x): P for x, P in zip(leaves, partitions, strict=True)})
        return None

    def _partition(self, x: Tensor, P: Partition) -> Partition:
        """The partition of a tensor in an argument on `P`: one without dims is whole on every worker."""
        return P if x.dim() else Partition(P.transport, self.P_x.grid)


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
