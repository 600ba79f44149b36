"""How one call of an operator is placed: by its rule, as a pointwise operator, or else replicated on every worker."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...operators.functions import short_name
from ...operators.table import NotOnBoxes
from ...torch_internals.operators import OpOverload, overload_of, schema_of
from ..movement import is_there
from .by_needs import by_needs
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
    call = _of_view(call)
    rule = rule_for(call.op) or (pointwise if is_elementwise(call.op) else None)
    reason = ""
    for each in (rule, by_needs):
        try:
            if each is not None:
                return each(call)
        except NothingCut:
            return replace(call.everywhere(), combines=True)
        except (NoRule, NotOnBoxes) as error:
            reason = reason or str(error)
    if call.cut and call.keeps_alias:
        raise NoRule(f"{reason}; its tensors would be gathered, but its result is a view that is written to")
    if torch.Tag.nondeterministic_seeded in call.op.tags:
        raise NoRule(f"{reason}, and it draws random numbers")
    if not call.tensors or not call.tensors[0].dim:  # an operator on a number
        return replace(call.everywhere(), combines=True)
    return replace(call.everywhere(), gathers=reason if call.cut else None)


def _of_view(call: Call) -> Call:
    """The call of the operator that makes a view, for one that makes the same tensor with its own memory."""
    name = short_name(call.op)
    packet = getattr(torch.ops.aten, name.removesuffix("_copy"), None)
    if not name.endswith("_copy") or rule_for(call.op) is not None or packet is None:
        return call
    overload = overload_of(call.op)
    return replace(call, op=getattr(packet, overload)) if overload in packet.overloads() else call


def is_elementwise(op: OpOverload) -> bool:
    return is_pointwise(op) or rule_for(op) is pointwise


def functional(op: OpOverload) -> OpOverload | None:
    """The out-of-place form of an operator that changes its first argument; None if there is none."""
    name = short_name(op)
    if not name.endswith("_"):
        return None
    for kind in (name.removesuffix("_"), f"{name}functional"):
        packet = getattr(torch.ops.aten, kind, None)
        for overload in (overload_of(op), "default", "p"):
            found = getattr(packet, overload, None) if packet and overload in packet.overloads() else None
            if found is not None and len(schema_of(found).arguments) == len(schema_of(op).arguments):
                return found
    return None
