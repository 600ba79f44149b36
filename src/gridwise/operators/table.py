"""The table of operators on boxes, by the name of the ATen operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from ..torch_internals.operators import OpOverload, name_of, overload_of, schema_of
from .call import OperatorCall
from .on_boxes import AnyOperator

Make = Callable[[OperatorCall], AnyOperator]
"""Makes the operator of one call. Raises `NotOnBoxes` for arguments that it cannot handle."""

AnyMake = TypeVar("AnyMake", bound=Make)

OPERATORS: dict[str, Make] = {}
"""By the operator's full name, as in "aten::add", or name and overload, as in "aten::where.Scalar"."""
BY_TAG: dict[torch.Tag, Make] = {}
"""By torch's tag, for operators that have no entry of their own."""


class NotOnBoxes(Exception):
    """An operator that cannot be computed box by box: it needs all of its inputs at once."""


def operator(*names: str) -> Callable[[AnyMake], AnyMake]:
    """Register the decorated function for the named ATen operators."""

    def entered(make: AnyMake) -> AnyMake:
        for name in names:
            OPERATORS[name if "::" in name else f"aten::{name}"] = make
        return make

    return entered


def operator_by_tag(tag: torch.Tag) -> Callable[[Make], Make]:
    """Register the decorated function for all operators that torch tags so, and that have no entry of their own."""

    def entered(make: Make) -> Make:
        BY_TAG[tag] = make
        return make

    return entered


def maker_for(op: OpOverload) -> Make | None:
    """The function that makes an operator on boxes of a call of `op`, or None; one for the overload takes precedence.

    None for operators that change their arguments: who calls them makes them functional first.
    """
    if schema_of(op).is_mutable:
        return None
    name, overload = name_of(op), overload_of(op)
    found = OPERATORS.get(f"{name}.{overload}") or OPERATORS.get(name)
    return found or next((make for tag, make in BY_TAG.items() if tag in op.tags), None)
