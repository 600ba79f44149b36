"""How one call of an operator is placed: by its rule, as a pointwise operator, or else replicated on every worker."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...operators.functions import short_name
from ...operators.table import NotOnBoxes
from ...torch_internals.operators import OpOverload, overload_of, schema_of
from ..movement import is_there
from .call import Call, NoRule, NothingCut, Placed
from .pointwise import is_pointwise, pointwise
from .table import rule_for


def answer(call: Call) -> Placed:
    """The answer of the operator's rule; without a rule, its tensors are gathered."""
    placed = _answer(call)
    if call.keeps_alias and placed.inputs and not is_there(call.tensors[0], placed.inputs[0]):
        raise NoRule("a view that is written to, of blocks that have to be moved")
    return placed


def _answer(call: Call) -> Placed:
    rule = rule_for(call.op) or (pointwise if is_elementwise(call.op) else None)
    reason = "there is no rule for it"
    if rule is not None:
        try:
            return rule(call)
        except NothingCut:
            return call.everywhere()
        except (NoRule, NotOnBoxes) as error:
            reason = str(error)
    if call.cut and call.keeps_alias:
        raise NoRule(f"{reason}; its tensors would be gathered, but its result is a view that is written to")
    if torch.Tag.nondeterministic_seeded in call.op.tags:
        raise NoRule(f"{reason}, and it draws random numbers")
    return replace(call.everywhere(), gathers=reason if call.cut else None)


def is_elementwise(op: OpOverload) -> bool:
    return is_pointwise(op) or rule_for(op) is pointwise


def functional(op: OpOverload) -> OpOverload | None:
    """The out-of-place form of an operator that changes its first argument; None if there is none."""
    name = short_name(op)
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if packet is None or not name.endswith("_"):
        return None
    for overload in (overload_of(op), "default", "p"):
        found = getattr(packet, overload, None) if overload in packet.overloads() else None
        if found is not None and len(schema_of(found).arguments) == len(schema_of(op).arguments):
            return found
    return None
