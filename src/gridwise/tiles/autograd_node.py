"""One call as one node of autograd, which is differentiated once: differentiating its gradients is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..models.program import leave_autocast
from .arrays import StoredArray
from .differentiate import DifferentiableExecution
from .graph import GlobalValue


class DifferentiatedCall(NamedTuple):
    """A call that is differentiated."""

    says: str
    run: DifferentiableExecution
    forward: Callable[[], None]
    backward: Callable[[Mapping[GlobalValue, Tensor]], list[Tensor | None]]
    outputs: list[GlobalValue]
    starts: list[GlobalValue]


class TiledCall(torch.autograd.Function):
    """One call as one node of autograd: arrays between stages are what it saves."""

    @staticmethod
    def forward(ctx: Any, call: DifferentiatedCall, *tensors: Tensor) -> Any:
        call.forward()
        run, outputs, starts = call.run, call.outputs, call.starts
        results = tuple(tensor_in(run.arrays[value]) for value in outputs)
        ctx.call = call
        ctx.saved = [v for v, a in run.arrays.items() if tensor_in(a) is not None and v not in starts]
        ctx.save_for_backward(*tensors, *(tensor_in(run.arrays[value]) for value in ctx.saved))
        for value in ctx.saved:
            if value not in outputs:
                _put(run.arrays[value], None)
        ctx.mark_non_differentiable(*(y for y, v in zip(results, outputs, strict=True) if not v.requires_grad))
        ctx.set_materialize_grads(False)
        ctx.casts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
        ]
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # raises if they have been freed, or changed since
        with torch.no_grad():
            found = TiledCall._pulled_back(ctx, saved, cotangents)
        if torch.is_grad_enabled():  # with create_graph=True
            found = list(_Once.apply(ctx.call.says, len(found), *found, *saved[: len(found)], *cotangents))
        return None, *found

    @staticmethod
    def _pulled_back(ctx: Any, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        call: DifferentiatedCall = ctx.call
        values = (*call.starts, *ctx.saved)
        for value, x in zip(values, saved, strict=True):
            _put(call.run.arrays[value], x.detach())
        given = {v: c for v, c in zip(call.outputs, cotangents, strict=True) if c is not None}
        entered = [torch.autocast(kind, dtype, enabled) for kind, enabled, dtype in ctx.casts]
        for mode in entered:
            mode.__enter__()
        try:
            return call.backward(given)
        finally:
            leave_autocast(entered)
            for value in values:
                _put(call.run.arrays[value], None)


class _Once(torch.autograd.Function):
    """Gradients that are not differentiated again: that is an error, where they would otherwise count as constants."""

    @staticmethod
    def forward(ctx: Any, says: str, count: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.says = says
        return tuple(None if x is None else x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> NoReturn:
        raise UnsupportedError(
            f"the gradients of {ctx.says} cannot be differentiated again.",
            fix="differentiate the model itself, or `gridwise.distribute(model, P_x)`, twice.",
        )


def tensor_in(array: StoredArray) -> Any:
    """The tensor that an array in memory is; None of another."""
    return getattr(array, "tensor", None)


def _put(array: StoredArray, tensor: Tensor | None) -> None:
    array.tensor = tensor  # type: ignore[attr-defined]
