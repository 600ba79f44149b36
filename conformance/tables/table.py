"""A table of facts: one call with many arguments, on tensors of some shapes, cut in some ways."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Shape = tuple[int, ...]
Cut = tuple[tuple[int, int], ...]
"""Pairs of a dim and the number of workers along it."""
Arguments = dict[str, Any]
EVERYWHERE: Arguments = {}


@dataclass(frozen=True)
class Table:
    """What is called on what; every combination of its alternatives is a case."""

    call: str
    """A module of torch.nn, or a function: "F.scaled_dot_product_attention", "torch.flatten", "Tensor.view"."""
    shapes: tuple[tuple[Shape, ...], ...]
    """Alternatives; each has the shapes of all tensors."""
    cuts: tuple[Cut, ...] = ((),)
    """Alternatives."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments; "args" are those without a name."""
    varied: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Arguments with their alternatives."""
    gradients: tuple[bool, ...] = (True,)
    """Whether gradients are compared too."""
    cut_tensors: tuple[int, ...] = (0,)
    """Which of the tensors are cut; the others are whole on every worker."""
    refused_there: Callable[[Arguments, Cut, bool], bool] = lambda arguments, cut, gradient: False
    """Whether the library that the table is from marks a case as an expected failure."""
    memory_format: Literal["", "channels_last", "channels_last_3d"] = ""
    pad_first: tuple[int, ...] = ()
    """Circular padding of the input, which the call then sees."""
    autocast: bool = False
    """Under autocast to bfloat16; then the comparison is as loose as that of the library's own test."""
    second: Literal["", "gradient", "both"] = ""
    """Whether gradients of a loss are compared that contains the gradient of the input; "both": and the output."""


@dataclass(frozen=True)
class Case:
    """One case of a table."""

    table: Table
    number: int
    shapes: tuple[Shape, ...]
    cut: Cut
    arguments: Arguments
    gradient: bool

    @property
    def name(self) -> str:
        """Unique within a suite."""
        said = ", ".join(f"{key}={value}" for key, value in self.arguments.items())
        where = " x ".join(f"{workers} along {dim}" for dim, workers in self.cut) or "whole"
        extras = [self.table.memory_format, "padded first" if self.table.pad_first else "", self.table.second]
        extras += ["autocast" if self.table.autocast else "", "" if self.gradient else "no gradient"]
        extra = "".join(f", {each}" for each in extras if each)
        return f"{self.number} {self.table.call}({said}) of {', '.join(map(str, self.shapes))}, cut {where}{extra}"

    @property
    def refused_there(self) -> bool:
        return self.table.refused_there(self.arguments, self.cut, self.gradient)


def cases(tables: tuple[Table, ...]) -> Iterator[Case]:
    """All cases of these tables."""
    for number, table in enumerate(tables):
        names, alternatives = list(table.varied), itertools.product(*table.varied.values())
        for values, shapes, cut, gradient in itertools.product(alternatives, table.shapes, table.cuts, table.gradients):
            arguments = {**table.fixed, **dict(zip(names, values, strict=True))}
            yield Case(table, number, shapes, cut, arguments, gradient)
