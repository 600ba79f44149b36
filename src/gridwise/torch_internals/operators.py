"""Operators of the dispatcher: their classes, names and schemas.

`torch.ops` gives them out, and `str` and `name()` are their names; what their arguments are says only a private attribute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket


def schema_of(op: Any) -> torch.FunctionSchema:
    """The names, types, defaults and aliasing of an operator's arguments and results."""
    return op._schema


def name_of(op: Any) -> str:
    """The name with its namespace, without the overload: ``aten::add`` of ``aten.add.Tensor`` and of ``aten.add``."""
    if isinstance(op, OpOverloadPacket):
        return str(op).replace(".", "::", 1)
    return str(op.name()).partition(".")[0]


def overload_of(op: Any) -> str:
    """The name of the overload: ``Tensor`` of ``aten.add.Tensor``."""
    return str(op.name()).partition(".")[2] or "default"
