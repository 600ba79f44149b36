"""The arguments of a model's `forward`: which are tensors, on which partition each lies, and which are held at a value.

    forward(self, x, mask=None, scale=1.0)       x is a tensor on `P_x`; mask and scale are held at None and 1.0
    distribute(model, P_x, mask=P_m, scale=2.0)  mask is a tensor on `P_m`, scale is held at 2.0

A graph has no branches, so what an argument that is no tensor says is decided when the model is converted.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...errors import PartitionError, UnsupportedError
from ...partition import Partition


@dataclass(frozen=True)
class Inputs:
    """What a converted model takes."""

    signature: inspect.Signature
    partitions: dict[str, Partition]
    """Of the arguments that are tensors, in the order of `forward`."""
    held: dict[str, Any]
    """The values of all other arguments."""
    limits: dict[str, int] = field(default_factory=dict)
    """Of tensors that are indices of an embedding, how many rows it has."""

    @classmethod
    def of(cls, model: torch.nn.Module, P_x: Partition, said: Mapping[str, Any]) -> Inputs:
        """Of `model` on `P_x`, with partitions and values for some arguments by name."""
        name, signature = type(model).__name__, inspect.signature(model.forward)
        partitions: dict[str, Partition] = {}
        held: dict[str, Any] = {}
        for key, parameter in signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UnsupportedError(
                    f"distribute: the forward of {name} takes any number of arguments ({parameter}).\n"
                    "  fix: name its arguments."
                )
            value = said.get(key, P_x if parameter.default is parameter.empty else parameter.default)
            if isinstance(value, Partition):
                partitions[key] = value
            elif isinstance(value, Tensor):
                raise UnsupportedError(
                    f"distribute: `{key}` of {name} cannot be held at a tensor.\n"
                    "  fix: give its partition, or register it as a buffer of the model."
                )
            else:
                held[key] = value
        unknown = [key for key in said if key not in signature.parameters]
        if unknown:
            raise PartitionError(f"distribute: the forward of {name} has no argument {', '.join(map(repr, unknown))}.")
        elsewhere = [key for key, P in partitions.items() if set(P.ranks) != set(P_x.ranks) or not P.dim]
        if elsewhere or not partitions:
            which = f"`{elsewhere[0]}` lies on other workers than `P_x`" if elsewhere else "no argument is a tensor"
            raise PartitionError(f"distribute: {name}: {which}.\n  fix: partitions of the workers {P_x.ranks}.")
        return cls(signature, partitions, held)

    @cached_property
    def _first(self) -> str:
        return next(iter(self.signature.parameters))

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], str | None]:
        """The tensors of a call, in the order of `partitions`, and what is wrong with its arguments, if anything is."""
        if not kwargs and len(args) == 1 and isinstance(args[0], Tensor) and [self._first] == list(self.partitions):
            return args, None  # as most calls are
        try:
            given = self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            missing = [key for key in self.partitions if key not in kwargs][len(args) :]
            if not str(error).startswith("missing") or not missing:
                return (), f"{error}; its arguments are {self.signature}"
            given = {}
        problems = []
        for key, P in self.partitions.items():
            if not isinstance(given.get(key), Tensor):
                what = f"{given[key]!r} was given" if key in given else "is missing"
                problems.append(f"`{key}` is a tensor on the grid {P.shape}: {what}")
        for key, value in self.held.items():
            if key in given and not _is_same(given[key], value):
                what = "a tensor was" if isinstance(given[key], Tensor) else f"{given[key]!r} was"
                fix = "P" if isinstance(given[key], Tensor) else f"{given[key]!r}"
                problems.append(
                    f"`{key}` is held at {value!r}, {what} given; distribute(model, P_x, {key}={fix}) takes it"
                )
        tensors = tuple(given.get(key) for key in self.partitions)
        return tensors, "; ".join(problems) or None


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and not isinstance(one, Tensor) and bool(one == other)
