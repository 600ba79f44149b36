"""What a model's code does and torch.fx does not see: refused, by name, while the model is traced.

    torch.autograd.Function    its forward would be traced, and its backward lost
    no_grad, autocast, ...     in `forward`: a graph does not know under which modes its nodes were made

Modes are looked at node by node. Grad mode is compared with that at the start; a model is traced with gradients and
without, so that one of the two tells. Of autocast, the depth of nesting says that it was entered at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch import utils as functorch

from ...errors import UnsupportedError

FIX = "write it with functions of torch, or keep that part sequential; of torch.utils.checkpoint, use_reentrant=False."


class Modes:
    """The modes of torch under which a trace has begun."""

    def __init__(self) -> None:
        self._at_start = _modes()

    def check(self, code: str) -> None:
        """Raise if a node is made under others; `code` is its line."""
        if _modes() != self._at_start:
            raise UnsupportedError(
                "distribute: no_grad, enable_grad, inference_mode or autocast inside of `forward`, which a graph does not "
                f"keep:  {code}\n"
                "  fix: have them around the call of the model; freeze by requires_grad_(False), or detach()."
            )


def _modes() -> tuple[Any, ...]:
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    casts = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), depth, *casts


@contextmanager
def functions_refused() -> Iterator[None]:
    """Let a `torch.autograd.Function` that is applied to what is traced be an error.

    Every call of `apply` asks `unwrap_dead_wrappers` first, also one that was bound to its class long before.
    """
    own = functorch.unwrap_dead_wrappers

    def refusing(args: tuple[Any, ...]) -> Any:
        traced: list[Any] = []
        torch.fx.node.map_aggregate(args, lambda arg: traced.append(arg) if isinstance(arg, torch.fx.Proxy) else None)
        if traced:
            function = sys._getframe(1).f_locals.get("cls")
            raise UnsupportedError(
                f"distribute: {getattr(function, '__name__', 'a function')} is a torch.autograd.Function, whose backward "
                f"would be lost.\n  fix: {FIX}"
            )
        return own(args)

    functorch.unwrap_dead_wrappers = refusing
    try:
        yield
    finally:
        functorch.unwrap_dead_wrappers = own
