"""Operators of the dispatcher: their classes, names, schemas and kernels.

`torch.ops` gives them out, and `str` and `name()` are their names; what their arguments are says only a private attribute.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket

kernels_of_nn: Any = torch._C._nn
"""Functions of `torch.nn.functional` without Python around them, and with arguments in the order of the operator."""
safe_softmax: Any = torch._safe_softmax
"""The softmax over a dim, with zeros where all scores are minus infinity."""
asserted: Any = torch._assert
"""The assertion of models that torch traces: of a Python truth, or of a tensor of one element."""
assert_async: Any = torch._assert_async
"""An operator that ends the program on the device if a tensor is false; the host does not wait for it."""


def is_flash_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Whether torch would compute an attention without mask or dropout by its flash kernel."""
    choice: int = torch._fused_sdp_choice(q, k, v, None, 0.0, causal)
    return choice == torch._C._SDPBackend.FLASH_ATTENTION.value


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


@cache
def composite_operators() -> list[OpOverload]:
    """Operators of torch that it composes of others, for all devices, by its table of kernels."""
    found = []
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten":
            found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


def is_cast_by_autocast(op: OpOverload) -> bool:
    """Whether autocast is on, for any kind of device, and has a kernel of its own for an operator."""
    return any(
        torch.is_autocast_enabled(kind)
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), f"Autocast{kind.upper()}")
        for kind in ("cpu", "cuda")
    )
