"""The table of all rules, by operator."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import PartitionError
from ...torch_internals.operators import OpOverload, OpOverloadPacket, name_of, overload_of
from .call import Rule

RULES: dict[str, Rule] = {}
"""By the operator's full name, as in "aten::add", or name and overload, as in "aten::where.Scalar"."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated rule for the named ATen operators."""

    def entered(function: Rule) -> Rule:
        for name in names:
            RULES[f"aten::{name}"] = function
        return function

    return entered


def register_rule(operator: OpOverload | OpOverloadPacket, function: Rule) -> None:
    """Register a rule: `function` says how `operator` runs on blocks, in every model that is placed from now on.

    Make the same call on all workers, before `distribute`.

    Parameters
    ----------
    operator : an operator of torch, as ``torch.ops.mylib.op`` (all of its overloads) or ``torch.ops.mylib.op.default``
    function : takes a `Call` and returns a `Placed`; see docs/distribute.md. It raises `NoRule` for a call that it
        cannot handle; the operator's tensors are then gathered, and the report says so

    Examples
    --------
    >>> from gridwise.models.rules import pointwise
    >>> gridwise.register_rule(torch.ops.aten.erfinv, pointwise)
    """
    if isinstance(operator, OpOverload):
        RULES[operator.name()] = function
    elif isinstance(operator, OpOverloadPacket):
        RULES[name_of(operator)] = function
    else:
        raise PartitionError(
            f"register_rule: `operator` (={operator!r}) must be an operator of torch, as torch.ops.mylib.op."
        )


def rule_for(op: OpOverload) -> Rule | None:
    """The rule of an operator, or None; a rule for the overload takes precedence."""
    name, overload = name_of(op), overload_of(op)
    return RULES.get(f"{name}.{overload}") or RULES.get(name)
